------------------------------- MODULE Deletes --------------------------------
(* Where what a version let go may be deleted (consensus.md, rule 6.5), so    *)
(* that a restart finds all that it names (rule 5.1).  Stands for             *)
(* session/witnesses.py, which collect.py, surplus.py and wipe.py ask.        *)
(*                                                                            *)
(* Every backend holds every pack.  A version is decided by a quorum, its     *)
(* records lie on a quorum, which may be another one, and it may let packs go *)
(* for ever.  Votes and records reach the others late, or never.  Before a    *)
(* version is decided another value may be accepted by fewer: it names a pack *)
(* of its own, 0, which is garbage once a later version lets it go.           *)
(*                                                                            *)
(* All that is lost for good but some backends: a restart goes on from the    *)
(* newest version of which a log among these shows the vote, and whose        *)
(* records one of them has.  A value that was accepted after it is carried.   *)
(* Where a log cannot be read to its end the run stops.                       *)
(*                                                                            *)
(* `gone[b]' are the packs that SOME device may delete on b, now or at any    *)
(* later time: a deletion that was right once may land late.                  *)
(*                                                                            *)
(* Abstracted: rounds (the value accepted last is the one that was decided,   *)
(* or there is none), how a reader finds its way over versions that all of    *)
(* these missed, copies (Replicas.tla), which packs may go at all             *)
(* (Packs.tla), and changes of who votes.                                     *)
EXTENDS Integers, FiniteSets, Sequences, TLC
CONSTANTS Voters, Plain,     \* backends with a vote, and without
          Quorum, VersionMax,
          Packs,             \* those that the first version names; 0 is not among them
          RotMax,            \* logs that are damaged after a vote was read there
          Mutants
VARIABLES log,               \* log[a][v]: "none"; "other", a value that was not decided; "vote"; "rotten"
          rec,               \* rec[a]: versions whose records lie on a
          let,               \* let[v]: packs that versions up to v have let go
          gone, rots
vars == <<log, rec, let, gone, rots>>

Broken(rule) == rule \in Mutants
Versions == 1..VersionMax
Backends == Voters \cup Plain
Top      == Len(let)
Let(v)   == IF v = 0 THEN {} ELSE let[v]
Max(S)   == CHOOSE x \in S : \A y \in S : y <= x

(* --- the rule ---                                                           *)
Shows(a, v) == log[a][v] = "vote" \/ (log[a][v] = "other" /\ Broken("deletes-any-vote"))
Knows(a, v) == Shows(a, v) /\ (v \in rec[a] \/ Broken("deletes-no-records"))
May(b) ==
  {p \in Let(Top) :
     \/ Broken("deletes-decided")
     \/ b \in Voters /\ \E v \in 1..Top : p \in let[v] /\ Knows(b, v)
     \/ b \in Plain /\ LET knowing == {a \in Voters : \E v \in 1..Top : p \in let[v] /\ Knows(a, v)}
                       IN \/ knowing = Voters
                          \/ knowing # {} /\ Broken("deletes-plain-one")
                          \/ Cardinality(knowing) >= Quorum /\ Broken("deletes-plain-quorum")}
(* Whatever may be deleted is, as far as the restart can tell.                *)
Judge == gone' = [b \in Backends |-> gone[b] \cup May(b)']

Init == /\ log = [a \in Voters |-> [v \in Versions |-> "none"]] /\ rec = [a \in Voters |-> {}]
        /\ let = <<>> /\ gone = [b \in Backends |-> {}] /\ rots = 0

Accept ==                                         \* a value that will lose; its pusher is too slow
  /\ Top < VersionMax /\ 0 \notin Let(Top) /\ \A a \in Voters, v \in Versions : log[a][v] # "other"
  /\ \E S \in SUBSET Voters :
       /\ S # {} /\ Cardinality(S) < Quorum
       /\ log' = [a \in Voters |-> IF a \in S THEN [log[a] EXCEPT ![Top + 1] = "other"] ELSE log[a]]
  /\ UNCHANGED <<rec, let, rots>> /\ Judge
Decide ==
  /\ Top < VersionMax
  /\ \E S, R \in SUBSET Voters, D \in SUBSET (Packs \cup {0}) :
       /\ Cardinality(S) = Quorum /\ Cardinality(R) = Quorum
       /\ let' = Append(let, Let(Top) \cup D)
       /\ log' = [a \in Voters |-> IF a \in S THEN [log[a] EXCEPT ![Top + 1] = "vote"] ELSE log[a]]
       /\ rec' = [a \in Voters |-> IF a \in R THEN rec[a] \cup {Top + 1} ELSE rec[a]]
  /\ UNCHANGED rots /\ Judge
Late(a, v) ==                                     \* a vote lands late, or is passed on
  /\ v <= Top /\ log[a][v] \in {"none", "other"} /\ log' = [log EXCEPT ![a][v] = "vote"]
  /\ UNCHANGED <<rec, let, rots>> /\ Judge
Put(a, v) ==
  /\ v <= Top /\ v \notin rec[a] /\ rec' = [rec EXCEPT ![a] = @ \cup {v}]
  /\ UNCHANGED <<log, let, rots>> /\ Judge
Rot(a, v) ==
  /\ rots < RotMax /\ log[a][v] = "vote" /\ log' = [log EXCEPT ![a][v] = "rotten"] /\ rots' = rots + 1
  /\ UNCHANGED <<rec, let>> /\ Judge

Next == \/ Accept \/ Decide
        \/ \E a \in Voters, v \in Versions : Late(a, v) \/ Put(a, v) \/ Rot(a, v)
----------------------------------------------------------------------------
(* --- a restart with these backends alone ---                                *)
Left == {K \in SUBSET Backends : K \cap Voters # {}}
Stops(K) == ~Broken("deletes-past-damage") /\ \E a \in K \cap Voters, v \in Versions : log[a][v] = "rotten"
From(K) == Max({0} \cup {v \in 1..Top : /\ \E a \in K \cap Voters : log[a][v] = "vote"
                                        /\ \E a \in K \cap Voters : v \in rec[a]})
Names(K) == (Packs \ Let(From(K)))
            \cup (IF \E a \in K \cap Voters, v \in Versions : v > From(K) /\ log[a][v] = "other" THEN {0} ELSE {})
(* All that it names lies on all backends that are left.                      *)
Whole == \A K \in Left : Stops(K) \/ \A b \in K : Names(K) \cap gone[b] = {}

(* Witnesses *)
NeverAlone == ~(\E a, c \in Voters : gone[a] # {} /\ \A v \in Versions : log[c][v] = "none")
NeverPlain == \A b \in Plain : gone[b] # Packs \cup {0}
NeverCarried == ~(\E K \in Left : From(K) > 0 /\ 0 \in Names(K) /\ \E b \in Backends \ K : 0 \in gone[b])
Symmetry == Permutations(Voters)
=============================================================================
