-------------------------------- MODULE Votes --------------------------------
(* One version where a *device* lies: it is admitted, signs what it likes and *)
(* keeps to no rule.  Stands for instance.py (what is decided, what is        *)
(* evidence), log_replay.py (what DECIDED does) and reconfigure.py (the       *)
(* fence).                                                                    *)
(*                                                                            *)
(* Devices 1 and 3 are honest: 1 owns round 0 (if Owner) or prepares 11, and  *)
(* 3 prepares 33.  Device 2 lies.  It appends to any log, at any time, any of *)
(*   "decided"   DECIDED(2)                                                   *)
(*   "accept"    ACCEPT(r, 2) in its rounds, without a PREPARE                *)
(*   "prepare"   PREPARE(r) in its rounds                                     *)
(*   "repeat"    ACCEPT(r, 2) in the rounds of the others                     *)
(*   "ahead"     the same, while no quorum has promised that round            *)
(* LiesMax times in all.  A revoked device that appends to logs of versions   *)
(* before its revocation is the same: those logs' bases admit it.  Strikes:   *)
(* "early" any time, "late" once an honest value is decided, "fenced" once     *)
(* the fence stands.                                                          *)
(*                                                                            *)
(* A reader reads whole logs: all of them, or any quorum while the rest is    *)
(* away.  A log that it does not read may hold anything.                      *)
(*                                                                            *)
(* With Liars = 1 there is one more acceptor, which lies as well: it promises *)
(* and accepts all, keeps nothing, and shows each reader whatever entries     *)
(* somebody signed, or none.  (Shown: at most one vote, any or all PREPAREs.  *)
(* More would only make more values look undecided.)                          *)
(*                                                                            *)
(* A device that knows what was decided may find an entry of the next version *)
(* on another value (anybody can sign one): a lie, or a fork.  The logs of    *)
(* this version tell (`BearsOut'; consensus.md, 3.3).                         *)
(*                                                                            *)
(* Abstracted: the logs' entries (Logs shows that appending in order is an    *)
(* acceptor), POISON, births, expiry (Configs).                               *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Logs, Liars, Quorum, Faults, Owner, Lies, LiarRounds, LiesMax, Strikes, Closes, Mutants
VARIABLES acc,      \* acc[b]: the log b replayed: promised, top (the value accepted last), votes, prepared, closed
          promises, \* PREPAREs of honest devices that took effect, with the log as it was then
          asked,    \* honest ACCEPTs that were sent
          first,    \* what a quorum voted for first: 0 if nothing
          lies      \* how many entries the liar wrote
vars == <<acc, promises, asked, first, lies>>

Broken(rule) == rule \in Mutants
Max(S)  == CHOOSE x \in S : \A y \in S : y <= x
Min(S)  == CHOOSE x \in S : \A y \in S : y >= x
Rounds  == (IF Owner THEN {} ELSE {<<1, 11>>}) \cup {<<3, 33>>}

(* What the logs S say, as they are in `at'.  A log lacks a round if it will  *)
(* never have promised it.  A round is earned unless so many lack it that no  *)
(* quorum can have promised it, and shown to be once what was not read cannot *)
(* change that, or nobody can finish the version: evidence is of the former,  *)
(* what is decided of the latter.                                             *)
Lacks(s, r)         == r \notin s.prepared /\ s.promised >= r
N                   == Cardinality(Logs) + Liars
Missing(S)          == N - Cardinality(S)
Liar                == "liar"
Voters(at, S, w)    == {b \in S : w \in at[b].votes}
Earned(at, S, r)    == \/ r = 0 \/ Broken("unprepared-counts")
                       \/ Cardinality({b \in S : Lacks(at[b], r)}) <= N - Quorum + Faults
IsShut(at, S, r)    == \E b \in S : at[b].closed # 0 /\ \E w \in at[b].votes : w[1] = r        \* then the rest is away, and counts for it
IsShown(at, S, r)   == \/ r = 0 \/ Broken("unprepared-counts") \/ Broken("open-round")
                       \/ Cardinality({b \in S : r \in at[b].prepared \/ (at[b].closed # 0 /\ ~Lacks(at[b], r))})
                          + (IF IsShut(at, S, r) THEN Missing(S) ELSE 0) >= Quorum - Faults
Cast(at, S)         == {w \in UNION {at[b].votes : b \in S} : Earned(at, S, w[1])}
Won(at, S)          == {w \in Cast(at, S) : Cardinality(Voters(at, S, w)) >= Quorum - Liars /\ IsShown(at, S, w[1])}  \* of logs that do not lie
Values(W)           == {w[2] : w \in W}
(* The values that a reader takes for decided; more than one is a fork.  With *)
(* `decided-votes' as it was: DECIDED on a quorum counts without votes, and   *)
(* behind it other votes do not.                                              *)
Believed(at, S) ==
  LET One == Cardinality(Values(UNION {at[b].votes : b \in S})) = 1                 \* then a closed log stands for it later, too
      Held(w) == {b \in S : w \in at[b].votes \/ (One /\ at[b].closed # 0 /\ \A u \in at[b].votes : u[1] < w[1])}
      W == {w \in Cast(at, S) : Cardinality(Held(w)) >= Quorum}
  IN IF Broken("decided-votes")
     THEN {x \in 1..3 : Cardinality({b \in S : at[b].closed = x}) >= Quorum}
          \cup Values({w \in W : Cardinality({b \in Voters(at, S, w) : at[b].closed \in {0, w[2]}}) >= Quorum})
     ELSE IF Broken("any-round") THEN Values(W)
     ELSE IF Broken("highest-round") THEN {w[2] : w \in {v \in W : v[1] = Max({u[1] : u \in W})}}
     ELSE LET X == {w[2] : w \in {v \in W : v[1] = Min({u[1] : u \in W})}}
          IN IF \E w \in W : w[2] \in X /\ IsShown(at, S, w[1]) THEN X ELSE {}
Fenced == \E r \in {0, 11, 33} : Cardinality({b \in Logs : acc[b].closed = first /\ <<r, first>> \in acc[b].votes}) >= Quorum - Liars
(* What readers see: logs as they are, and what the lying acceptor shows.     *)
CanLie   == LiesMax > 0 /\ (Strikes = "early" \/ (first \notin {0, 2} /\ (Strikes = "late" \/ Fenced)))
Signed   == {<<q.r, q.x>> : q \in asked}
            \cup (IF CanLie /\ "accept" \in Lies THEN {<<r, 2>> : r \in LiarRounds} ELSE {})
            \cup (IF CanLie /\ Lies \cap {"repeat", "ahead"} # {} THEN {<<p[2], 2>> : p \in Rounds} ELSE {})
Shown    == {[promised |-> p, top |-> 0, votes |-> {}, prepared |-> {}, closed |-> 0] : p \in {-1, 99}}
            \cup {[promised |-> 99, top |-> w[2], votes |-> {w}, prepared |-> {w[1]}, closed |-> c] : w \in Signed, c \in {0, 1, 2, 3}}
With(at, l) == [b \in DOMAIN at \cup {Liar} |-> IF b = Liar THEN l ELSE at[b]]
Views(at)  == {[b \in S |-> at[b]] : S \in SUBSET DOMAIN at}
              \cup (IF Liars = 0 THEN {} ELSE {With([b \in S |-> at[b]], l) : S \in SUBSET DOMAIN at, l \in Shown})
Readers    == {V \in Views(acc) : Cardinality(DOMAIN V) >= Quorum}
Whole      == {V \in Readers : Logs \subseteq DOMAIN V}

(* Whether what was read bears out that x was decided: it is, and no log that *)
(* was not read, or that may lie, can show another value in a lower round.    *)
BearsOut(at, S, x) ==
  LET C   == Cast(at, S)
      W   == {w \in C : Cardinality(Voters(at, S, w)) >= Quorum}
      low == Min({w[1] : w \in {u \in W : u[2] = x}})
      o   == {Cardinality(Voters(at, S, w)) : w \in {u \in C : u[2] # x /\ u[1] < low}}
  IN IF Broken("apart-word") THEN TRUE
     ELSE IF Broken("apart-void") THEN FALSE
     ELSE /\ Believed(at, S) = {x} /\ (\E w \in W : w[2] = x)
          /\ Broken("apart-decided") \/ o = {} \/ Max(o) + Missing(S) + Faults < Quorum

(* Evidence: the value of the highest earned round.  Two of one round: the    *)
(* one that may have a quorum; if both may, the proposer waits.               *)
Evidence(at, S, own) ==
  LET C    == Cast(at, S)
      T    == {w \in C : w[1] = Max({u[1] : u \in C})}
      Open == {b \in S : at[b].promised <= Max({u[1] : u \in C}) /\ at[b].votes \cap T = {}}
      May  == {w \in T : Cardinality(Voters(at, S, w)) + Cardinality(Open) + Missing(S) + Faults >= Quorum}
  IN IF C = {} THEN {own}
     ELSE IF Cardinality(T) = 1 \/ May = {} \/ Broken("either-of-two") THEN Values(T)
     ELSE IF Cardinality(May) = 1 THEN Values(May) ELSE {}

Init == /\ acc = [b \in Logs |-> [promised |-> -1, top |-> 0, votes |-> {}, prepared |-> {}, closed |-> 0]]
        /\ promises = {} /\ asked = {} /\ first = 0 /\ lies = 0

(* What lands and takes effect.  (What has none is not appended.)             *)
Takes(b, r)    == acc[b].closed = 0 /\ r > acc[b].promised /\ acc' = [acc EXCEPT ![b].promised = r, ![b].prepared = @ \cup {r}]
Votes(b, r, x) == /\ acc[b].closed = 0 /\ r >= acc[b].promised
                  /\ \A w \in acc[b].votes : w[1] # r
                  /\ acc' = [acc EXCEPT ![b].promised = r, ![b].top = x, ![b].votes = @ \cup {<<r, x>>}]
                  /\ LET W == Won(acc', Logs) IN first' = IF first # 0 \/ W = {} THEN first ELSE (CHOOSE w \in W : TRUE)[2]
Shuts(b, x)    == /\ acc[b].closed = 0 /\ (x = acc[b].top \/ Broken("empty-fence") \/ Broken("decided-votes"))
                  /\ acc' = [acc EXCEPT ![b].closed = x]

OwnRound   == /\ Owner /\ \A q \in asked : q.by # 1
              /\ asked' = asked \cup {[by |-> 1, r |-> 0, x |-> 1]} /\ UNCHANGED <<acc, promises, first, lies>>
Prepare(b) == \E p \in Rounds : /\ Takes(b, p[2]) /\ promises' = promises \cup {[b |-> b, r |-> p[2], at |-> acc'[b]]}
                                /\ UNCHANGED <<asked, first, lies>>
Accept(b)  == \E q \in asked : Votes(b, q.r, q.x) /\ UNCHANGED <<promises, asked, lies>>
Propose == \E p \in Rounds :
  /\ \A q \in asked : q.by # p[1]
  /\ LET P  == {q \in promises : q.r = p[2]}
         at == [b \in {q.b : q \in P} |-> (CHOOSE q \in P : q.b = b).at]
     IN \E V \in Views(at) :
          /\ Cardinality(DOMAIN V) >= Quorum
          /\ \E x \in Evidence(V, DOMAIN V, p[1]) : asked' = asked \cup {[by |-> p[1], r |-> p[2], x |-> x]}
  /\ UNCHANGED <<acc, promises, first, lies>>

(* The fence: device 1 closes logs that voted for what is decided, in the     *)
(* round that decided it.  It stands once a quorum is closed so.              *)
Fence(b) == /\ Closes /\ \E w \in Won(acc, Logs) : w[2] = first /\ (w \in acc[b].votes \/ Broken("empty-fence")) /\ Shuts(b, first)
            /\ UNCHANGED <<promises, asked, first, lies>>
Lie(b) == /\ lies < LiesMax /\ lies' = lies + 1 /\ UNCHANGED <<promises, asked>>
          /\ CanLie
          /\ \/ "decided" \in Lies /\ Shuts(b, 2) /\ UNCHANGED first
             \/ "prepare" \in Lies /\ (\E r \in LiarRounds : Takes(b, r)) /\ UNCHANGED first
             \/ "accept"  \in Lies /\ \E r \in LiarRounds : Votes(b, r, 2)
             \/ "repeat"  \in Lies /\ \E r \in {p[2] : p \in Rounds} \cup (IF Owner THEN {0} ELSE {}) : Votes(b, r, 2)
             \/ "ahead"   \in Lies /\ \E p \in Rounds : /\ Cardinality({c \in Logs : p[2] \in acc[c].prepared}) < Quorum
                                                     /\ Votes(b, p[2], 2)

Next == OwnRound \/ Propose \/ \E b \in Logs : Prepare(b) \/ Accept(b) \/ Fence(b) \/ Lie(b)
----------------------------------------------------------------------------
(* Who reads all logs takes what was decided first for decided, whatever      *)
(* anybody appends: no device is led apart for good.  (With an acceptor that  *)
(* lies: or is told that it cannot know.)                                     *)
Stands     == first # 0 => \A V \in Whole : IF Liars = 0 THEN Believed(V, Logs) = {first} ELSE Believed(V, DOMAIN V) \subseteq {first}
(* The same of every quorum, while the others are away: nothing else.         *)
Everywhere == first # 0 => \A V \in Readers : Believed(V, DOMAIN V) \subseteq {first}
(* No honest device proposes against what was decided.                        *)
NoLostCommit == first # 0 => \A q \in asked : (\E w \in Won(acc, Logs) : w[2] = first /\ q.r >= w[1]) => q.x = first
(* The rules cost honest devices nothing: whoever reads a quorum counts each  *)
(* vote of theirs that it shows.                                              *)
HonestCounts == \A V \in Readers : \A q \in asked : Earned(V, DOMAIN V, q.r)
(* DECIDED alone ends no version: as long as nothing is decided, a quorum of  *)
(* logs takes votes.                                                          *)
StaysOpen  == first # 0 \/ Cardinality({b \in Logs : acc[b].closed = 0}) >= Quorum - Liars

(* Whoever knows what was decided is not stopped by a word that something     *)
(* else was, whatever it cannot read; and who was led apart is told by all    *)
(* logs.                                                                      *)
NotStopped == first # 0 => \A V \in Readers : \A x \in (1..3) \ {first} : ~BearsOut(V, DOMAIN V, x)
Noticed    == first # 0 => \A V \in Whole : Cardinality({b \in Logs : \E w \in Won(acc, Logs) : w[2] = first /\ w \in acc[b].votes}) >= Quorum
                                            => BearsOut(V, DOMAIN V, first)

(* Witnesses *)
NeverUnsure   == \A V \in Readers : \A x \in Believed(V, DOMAIN V) : BearsOut(V, DOMAIN V, x)
NeverHides    == Noticed
NeverTwice    == Cardinality(Values({w \in UNION {acc[b].votes : b \in Logs} : Cardinality(Voters(acc, Logs, w)) >= Quorum})) < 2
NeverFenced   == ~(first # 0 /\ Fenced)
NeverUnearned == \A V \in Readers : Cast(V, DOMAIN V) = UNION {V[b].votes : b \in DOMAIN V}
NeverCarried  == \A q \in asked : q.by # 3 \/ q.x # 1
NeverBothInOne == \A b, c \in Logs : \A v \in acc[b].votes, w \in acc[c].votes : v[1] = w[1] => v[2] = w[2]
NeverDeceived == Everywhere
NeverInTurn   == Stands
NeverTogether == Stands
Symmetry == Permutations(Logs)
=============================================================================
