-------------------------------- MODULE Shown ---------------------------------
(* A floor of a made-up history (consensus.md, rule 1.11, "A floor that is a  *)
(* lie").  Stands for leaps.py: `_sure_of', and truncation.py: `intact'.      *)
(*                                                                            *)
(* A reader that slept knows the state before version 3.  Versions 1 and 2    *)
(* are the first two of its block, and are decided.  Version 3 may be decided *)
(* while it sleeps; then others go on to the floor, and each acceptor may put *)
(* the true floor and delete its logs: version 1 first, then 2, then 3.  The  *)
(* liar puts a floor of its own history on all acceptors at any time.         *)
(*                                                                            *)
(* An owner that slept may have its ACCEPT land in the log of version 1, or   *)
(* of version 2 ("ghost"), after that was deleted; not in both, because they  *)
(* have one owner, which sleeps once and for one version at a time.           *)
(*                                                                            *)
(* The reader takes an acceptor for one that lost nothing if it shows votes   *)
(* in the logs of 1 and 2, before and after it reads that of 3.  More than    *)
(* n - q such acceptors without a vote in 3 tell that 3 was never decided:    *)
(* the floors are a lie, and 2 is the newest.                                 *)
(*                                                                            *)
(* Abstracted: heads, who signs what, and what the reader does where the logs *)
(* tell nothing: it goes on by the floor, or waits.                           *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Acceptors, Quorum,
          Away,          \* acceptors that may have missed versions 1 and 2
          Mutants
VARIABLES has,           \* has[a]: versions of which the log on a has a true vote
          deleted,       \* deleted[a]: how many of its logs were deleted, 0 to 3
          ghost,         \* where an owner's late ACCEPT landed: <<a, v>>
          decided,       \* whether version 3 is
          began,         \* of the reader: had version 3 been decided when it began? "no" before it did
          before, quiet, after,   \* acceptors that showed both votes first; no vote in 3; and both again
          lie            \* the floor of the liar stands
vars == <<has, deleted, ghost, decided, began, before, quiet, after, lie>>

Broken(rule) == rule \in Mutants
N == Cardinality(Acceptors)
Shows(a, v) == (v \in has[a] /\ deleted[a] < v) \/ <<a, v>> \in ghost
Whole(a) == Shows(a, 1) /\ (Shows(a, 2) \/ Broken("shown-one-version"))

Init == /\ has \in [Acceptors -> {{}, {1, 2}}] /\ \A a \in Acceptors \ Away : has[a] = {1, 2}
        /\ Cardinality({a \in Acceptors : has[a] # {}}) >= Quorum
        /\ deleted = [a \in Acceptors |-> 0] /\ ghost = {} /\ decided = FALSE
        /\ began = "no" /\ before = {} /\ quiet = {} /\ after = {} /\ lie = FALSE

(* --- the others ---                                                         *)
Decide == \E S \in SUBSET Acceptors :
  /\ ~decided /\ Cardinality(S) = Quorum /\ decided' = TRUE
  /\ has' = [a \in Acceptors |-> has[a] \cup (IF a \in S THEN {3} ELSE {})]
  /\ UNCHANGED <<deleted, ghost, began, before, quiet, after, lie>>
Delete(a) ==
  /\ decided /\ deleted[a] < 3
  /\ deleted' = [deleted EXCEPT ![a] = IF Broken("shown-any-order") THEN 3 ELSE @ + 1]
  /\ has' = IF Broken("shown-any-order") THEN [has EXCEPT ![a] = @ \ {3}] ELSE has
  /\ UNCHANGED <<ghost, decided, began, before, quiet, after, lie>>
DeleteThird(a) ==                                \* the log that the reader asks for goes before the first two
  /\ Broken("shown-any-order") /\ decided /\ 3 \in has[a] /\ has' = [has EXCEPT ![a] = @ \ {3}]
  /\ UNCHANGED <<deleted, ghost, decided, began, before, quiet, after, lie>>
Late(a, v) ==
  /\ v \in {1, 2} /\ deleted[a] >= v /\ \A g \in ghost : g[2] = v
  /\ ghost' = ghost \cup {<<a, v>>}
  /\ UNCHANGED <<has, deleted, decided, began, before, quiet, after, lie>>
Lie == /\ ~lie /\ lie' = TRUE
       /\ UNCHANGED <<has, deleted, ghost, decided, began, before, quiet, after>>

(* --- the reader ---                                                         *)
Floor(a) == lie \/ deleted[a] > 0 \/ decided      \* some floor is there: only then is all this asked
Begin == /\ began = "no" /\ \E a \in Acceptors : Floor(a)
         /\ began' = (IF decided THEN "decided" ELSE "open")
         /\ UNCHANGED <<has, deleted, ghost, decided, before, quiet, after, lie>>
First(a) == /\ began # "no" /\ quiet = {} /\ Whole(a) /\ before' = before \cup {a}
            /\ UNCHANGED <<has, deleted, ghost, decided, began, quiet, after, lie>>
Third(a) == /\ began # "no" /\ after = {} /\ a \in before /\ ~Shows(a, 3) /\ quiet' = quiet \cup {a}
            /\ UNCHANGED <<has, deleted, ghost, decided, began, before, after, lie>>
Again(a) == /\ a \in quiet /\ (Whole(a) \/ Broken("shown-once")) /\ after' = after \cup {a}
            /\ UNCHANGED <<has, deleted, ghost, decided, began, before, quiet, lie>>

Next == \/ Decide \/ Lie \/ Begin
        \/ \E a \in Acceptors : Delete(a) \/ DeleteThird(a) \/ First(a) \/ Third(a) \/ Again(a)
        \/ \E a \in Acceptors, v \in {1, 2} : Late(a, v)
----------------------------------------------------------------------------
(* Does the reader call the floors a lie, and version 2 the newest?           *)
Refutes == Cardinality(after) > N - Quorum \/ (Broken("shown-by-few") /\ after # {})
(* It does so only where version 3 was not decided when it began.             *)
Recent == ~(Refutes /\ began = "decided")
(* Floors are believed, as they were before this rule.                        *)
Believes == Broken("shown-floors-count") /\ began = "open" /\ lie /\ ~decided
Led == ~Believes

(* Witnesses *)
NeverRefuted == ~(Refutes /\ lie)
NeverGhost   == ~(\E a \in Acceptors : a \in before /\ deleted[a] > 0)
Symmetry == Permutations(Acceptors)
=============================================================================
