------------------------------- MODULE Configs -------------------------------
(* Reconfiguration: version 1 is agreed on the config Old; the value Changes  *)
(* (client r proposes r) changes the config to New, any other leaves          *)
(* it.  Version 2 runs on the config that the value of version 1 names.  A    *)
(* backend that New does not have may be emptied after the change while it    *)
(* can still be written, and clients may have slept through all of it.        *)
(* Stands for instance.py, births.py and reconfig.py.                         *)
(*                                                                            *)
(* Round r belongs to client r, whose own value is r.  Facts are stable, as   *)
(* in Instances.tla: a sleeper is a client that uses old ones.                *)
(*                                                                            *)
(* Two remedies against an emptied acceptor:                                  *)
(*   births  an acceptor whose birth object is not the config's neither       *)
(*           promises nor votes.  The check is atomic with the append here;   *)
(*           what may happen between the two requests is the mutant no-birth. *)
(*           It suffices alone.                                               *)
(*   fence   DECIDED closes logs of version 1 that accepted its value last.   *)
(*           What they accepted stays a vote (rule 8.1), and a closed log is  *)
(*           as good as a promise of what it can still promise.  Beside it,   *)
(*           what was read long ago is read again: an acceptor is emptied so  *)
(*           much later that then only what the logs still show counts.  It   *)
(*           suffices where no request is on its way for that long (Late).    *)
(*                                                                            *)
(* With SecondMax > 0, version 1 is left alone and forgotten, but for its     *)
(* value, when version 2 is entered: the two share nothing else.              *)
(*                                                                            *)
(* Abstracted: contents and keys; what lies on New before version 2; owner    *)
(* rounds (round 1 of the model has the PREPARE that round 0 does without);   *)
(* devices that lie (Votes).                                                  *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Kept,         \* acceptors of both configs
          Left,         \* acceptors of Old only: they may be emptied
          Joined,       \* acceptors of New only
          Quorum,       \* of either config
          Changes,      \* the value that changes the config
          RoundMax,     \* rounds 1..RoundMax in version 1
          SecondMax,    \* rounds 1..SecondMax in version 2; 0: version 2 is only entered
          Remedies,     \* a part of {"births", "fence"}
          Emptied,      \* FALSE: nothing is emptied
          Late,         \* TRUE: an ACCEPT may land on an acceptor that was emptied since it was sent
          Mutants
VARIABLES acc,          \* the logs, replayed, of either version: promised, prepared, votes
          lost,         \* what the log of version 1 of an emptied acceptor had held
          promises,     \* PREPAREs that took effect, with the log as it was then
          requests, learned, \* learned: values of version 1 that somebody learned by counting votes
          closed,       \* closed[b]: the value with which DECIDED closed the log of version 1; 0: open
          entered,      \* somebody proposes version 2
          emptied       \* acceptors that were emptied
vars == <<acc, lost, promises, requests, learned, closed, entered, emptied>>

Broken(rule) == rule \in Mutants
Old   == Kept \cup Left
New   == Kept \cup Joined
All   == Old \cup Joined
Empty == [promised |-> 0, prepared |-> {}, votes |-> {}]
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Min(S) == CHOOSE x \in S : \A y \in S : y >= x
RoundsOf(v) == 1..(IF v = 1 THEN RoundMax ELSE SecondMax)

Init == /\ acc = [v \in {1, 2} |-> [b \in All |-> Empty]] /\ lost = [b \in All |-> Empty]
        /\ promises = {} /\ requests = {} /\ learned = {} /\ closed = [b \in All |-> 0]
        /\ entered = FALSE /\ emptied = {}

(* The acceptors on which client r works on version v.                        *)
Members(v) == IF v = 1 THEN Old ELSE IF Changes \in learned THEN New ELSE Old
Where(v)   == IF Broken("newest-config") THEN {Old} \cup (IF Changes \in learned THEN {New} ELSE {}) ELSE {Members(v)}
Open(v)    == IF v = 1 THEN ~(entered /\ SecondMax > 0) ELSE entered
(* What an emptied acceptor answers counts only if nobody asks for its birth. *)
Sound(b, prepare) == \/ b \notin emptied
                     \/ "births" \notin Remedies
                     \/ Broken("no-birth")
                     \/ prepare /\ Broken("no-birth-promise")
(* What was collected before the emptying, which comes long after the fence,  *)
(* has expired.                                                               *)
Expired == "fence" \in Remedies /\ ~Broken("no-expiry") /\ emptied # {}

Top(l)   == IF l.votes = {} THEN [r |-> 0, x |-> 0] ELSE CHOOSE w \in l.votes : \A u \in l.votes : u.r <= w.r
(* A round is earned unless so many of the logs lack it that no quorum can    *)
(* have promised it.                                                          *)
Lacks(l, r)      == r \notin l.prepared /\ l.promised >= r
Earned(at, S, r) == Cardinality({b \in S : Lacks(at[b], r)}) <= Cardinality(Old) - Quorum

Prepare(v, b) == \E r \in RoundsOf(v) :
  /\ Open(v) /\ Sound(b, TRUE) /\ r > acc[v][b].promised
  /\ v = 1 => closed[b] = 0
  /\ \E M \in Where(v) : b \in M
  /\ acc' = [acc EXCEPT ![v][b].promised = r, ![v][b].prepared = @ \cup {r}]
  /\ promises' = promises \cup {[v |-> v, b |-> b, r |-> r, at |-> acc'[v][b]]}
  /\ UNCHANGED <<lost, requests, learned, closed, entered, emptied>>
(* The logs that promise r, as they were when they did so, or as they are     *)
(* now; and closed ones that can still promise it.                            *)
Granting(v, r) ==
  {[b |-> p.b, at |-> p.at] : p \in {q \in promises : q.v = v /\ q.r = r /\ ~Expired}}
  \cup {[b |-> b, at |-> acc[v][b]] : b \in {c \in All : r \in acc[v][c].prepared /\ acc[v][c].promised = r}}
  \cup {[b |-> b, at |-> acc[v][b]] : b \in {c \in All : v = 1 /\ closed[c] # 0 /\ ~Lacks(acc[v][c], r)}}
Propose(v, r) ==
  /\ Open(v) /\ \A q \in requests : q.v # v \/ q.r # r
  /\ \E M \in Where(v) : \E S \in SUBSET {g \in Granting(v, r) : g.b \in M /\ Sound(g.b, TRUE)} :
       /\ Cardinality(S) = Cardinality({g.b : g \in S}) /\ Cardinality(S) >= Quorum
       /\ LET at == [b \in {g.b : g \in S} |-> (CHOOSE g \in S : g.b = b).at]
              E  == {w \in UNION {at[b].votes : b \in DOMAIN at} : Earned(at, DOMAIN at, w.r)}
          IN \E x \in (IF E = {} THEN {r} ELSE {w.x : w \in {u \in E : u.r = Max({e.r : e \in E})}}) :
               requests' = requests \cup {[v |-> v, r |-> r, x |-> x, on |-> M, late |-> emptied # {}]}
  /\ UNCHANGED <<acc, lost, promises, learned, closed, entered, emptied>>
Accept(b) == \E q \in requests :
  /\ Open(q.v) /\ Sound(b, FALSE) /\ b \in q.on /\ q.r >= acc[q.v][b].promised
  /\ b \in emptied => q.late \/ Late \/ Broken("no-expiry")    \* (a sleeper sends it again, by promises of long ago)
  /\ q.v = 1 => closed[b] = 0
  /\ \A w \in acc[q.v][b].votes : w.r # q.r
  /\ acc' = [acc EXCEPT ![q.v][b].promised = q.r, ![q.v][b].votes = @ \cup {[r |-> q.r, x |-> q.x]}]
  /\ UNCHANGED <<lost, promises, requests, learned, closed, entered, emptied>>

(* What a reader of a quorum counts: votes, and logs that are closed, where   *)
(* all that it reads shows one value.  What an emptied acceptor had held      *)
(* counts for those who read it before.  A log may have been read up to any   *)
(* vote.                                                                      *)
Logs(v, b)   == {acc[v][b]} \cup (IF v = 1 /\ b \in emptied /\ ~Expired THEN {lost[b]} ELSE {})
Votes(v, w)  == {b \in All : \E l \in Logs(v, b) : w \in l.votes}
Alone(v, w)  == {b \in All : \E l \in Logs(v, b) : w \in l.votes /\ \A u \in l.votes : u.r < w.r => u.x = w.x}
Stand(v, w)  == {b \in All : v = 1 /\ closed[b] = w.x /\ \A u \in acc[v][b].votes : u.x = w.x /\ u.r < w.r}
Unearned(v, w, S) == Cardinality({b \in S : \A l \in Logs(v, b) : w \in l.votes => Lacks(l, w.r)}) > Cardinality(Old) - Quorum
Counts(v, w, S) == Cardinality(S) >= Quorum /\ ~Unearned(v, w, S)
Counted(v) == {q.x : q \in {p \in requests : /\ p.v = v
                 /\ LET w == [r |-> p.r, x |-> p.x] IN \/ Counts(v, w, Votes(v, w) \cap p.on)
                                                      \/ Counts(v, w, (Alone(v, w) \cup Stand(v, w)) \cap p.on)}}
Learn == /\ Open(1) /\ learned' = learned \cup Counted(1) /\ learned' # learned
         /\ UNCHANGED <<acc, lost, promises, requests, closed, entered, emptied>>
(* Anybody who knows the value of version 1 writes DECIDED into its logs.     *)
Fence(b) == /\ b \in Old \ emptied /\ closed[b] = 0 /\ Top(acc[1][b]).x \in learned /\ "fence" \in Remedies
            /\ closed' = [closed EXCEPT ![b] = Top(acc[1][b]).x]
            /\ UNCHANGED <<acc, lost, promises, requests, learned, entered, emptied>>
(* The fence stands in one round, on a quorum of Old, and so that each quorum *)
(* of Old meets it on an acceptor that stays.                                 *)
Quorums(S) == {X \in SUBSET S : Cardinality(X) >= Quorum}
FencedIn(r, x) == {b \in Old : closed[b] = x /\ [r |-> r, x |-> x] \in acc[1][b].votes}
FenceStands == \E q \in requests : q.v = 1 /\ q.x \in learned /\ Cardinality(FencedIn(q.r, q.x)) >= Quorum
Surviving   == \E q \in requests : q.v = 1 /\ q.x \in learned /\ \A X \in Quorums(Old) : X \cap FencedIn(q.r, q.x) \cap Kept # {}
(* Version 2: after a change of config, only once the fence stands (whoever   *)
(* changed it may have died before).                                          *)
Enter == /\ ~entered /\ learned # {}
         /\ ("fence" \in Remedies /\ Changes \in learned /\ ~Broken("no-fence")) => (Broken("no-confirm") \/ FenceStands)
         /\ entered' = TRUE
         /\ IF SecondMax = 0 THEN UNCHANGED <<acc, promises, requests>>
            ELSE /\ acc' = [v \in {1, 2} |-> [b \in All |-> Empty]]
                 /\ promises' = {} /\ requests' = {}
         /\ UNCHANGED <<lost, learned, closed, emptied>>
(* Removed backends are given up once version 2 was entered.                  *)
Empty_(b) ==
  /\ Emptied /\ b \in Left \ emptied /\ Changes \in learned /\ entered
  /\ ("fence" \in Remedies /\ ~Broken("no-fence") /\ ~Broken("no-confirm") /\ ~Broken("leap")) =>
        IF Broken("fence-on-removed") THEN FenceStands ELSE Surviving
  /\ emptied' = emptied \cup {b}
  /\ acc' = [acc EXCEPT ![1][b] = Empty] /\ lost' = [lost EXCEPT ![b] = acc[1][b]]
  /\ closed' = [closed EXCEPT ![b] = 0]
  /\ UNCHANGED <<promises, requests, learned, entered>>
Next == \/ \E v \in {1, 2} : \/ \E b \in All : Prepare(v, b)
                             \/ \E r \in RoundsOf(v) : Propose(v, r)
        \/ Learn \/ Enter
        \/ \E b \in All : Accept(b) \/ Fence(b) \/ Empty_(b)
----------------------------------------------------------------------------
Agreement == Cardinality(learned \cup Counted(1)) <= 1 /\ Cardinality(Counted(2)) <= 1
(* Every vote of version 2 lies on an acceptor of the config that the value   *)
(* of version 1 names.                                                        *)
ConfigSafety == \A b \in All : acc[2][b].votes # {} => learned # {} /\ b \in Members(2)

(* Witnesses *)
NeverEmptied     == emptied = {} \/ Counted(1) = {}
NeverOnJoined    == \A b \in Joined : \A w \in acc[2][b].votes : w.x \notin Counted(2)
NeverStale       == ~(emptied # {} /\ \E q \in requests : q.v = 1 /\ q.x \notin learned)
NeverUnderWay    == Agreement
NeverStands      == \A q \in requests : q.v = 1 => LET w == [r |-> q.r, x |-> q.x] IN
                      ~(~Counts(1, w, Votes(1, w)) /\ Counts(1, w, Alone(1, w) \cup Stand(1, w)))
Symmetry == Permutations(Kept)
=============================================================================
