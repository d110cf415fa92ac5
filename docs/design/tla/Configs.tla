------------------------------- MODULE Configs -------------------------------
(* Reconfiguration: version 1 is agreed on the config Old; the value 1 (the   *)
(* one that client 1 proposes) changes the config to New, any other leaves    *)
(* it.  Version 2 runs on the config that the value of version 1 names.  A    *)
(* backend that New does not have may be emptied after the change while it    *)
(* can still be written, and clients may have slept through all of it.        *)
(* Stands for instance.py, births.py and reconfig.py.                         *)
(*                                                                            *)
(* Round r belongs to client r, whose own value is r.  Facts are stable, as   *)
(* in Instances.tla: a sleeper is a client that uses old ones.                *)
(*                                                                            *)
(* Two remedies against an emptied acceptor, of which each must suffice:      *)
(*   births  an acceptor whose birth object is not the config's neither       *)
(*           promises nor votes.  The check is atomic with the append here;   *)
(*           what may happen between the two requests is the mutant no-birth. *)
(*   fence   DECIDED closes the logs of version 1, and promises and votes     *)
(*           collected long ago are read again: it is emptied so much later   *)
(*           that afterwards only what the logs still show counts.            *)
(*                                                                            *)
(* With SecondMax > 0, version 1 is left alone and forgotten, but for its     *)
(* value, when version 2 is entered: the two share nothing else.              *)
(*                                                                            *)
(* Abstracted: contents and keys; what lies on New before version 2; owner    *)
(* rounds (round 1 of the model has the PREPARE that round 0 does without).   *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Kept,         \* acceptors of both configs
          Left,         \* acceptors of Old only: they may be emptied
          Joined,       \* acceptors of New only
          Quorum,       \* of either config
          RoundMax,     \* rounds 1..RoundMax in version 1
          SecondMax,    \* rounds 1..SecondMax in version 2; 0: version 2 is only entered
          Remedies,     \* a part of {"births", "fence"}
          Emptied,      \* FALSE: nothing is emptied
          Mutants
VARIABLES acc, promises, votes, requests,
          learned,      \* values of version 1 that somebody learned by counting votes
          fenced,       \* acceptors whose log of version 1 holds DECIDED
          entered,      \* somebody proposes version 2
          emptied       \* acceptors that were emptied
vars == <<acc, promises, votes, requests, learned, fenced, entered, emptied>>

Broken(rule) == rule \in Mutants
Old   == Kept \cup Left
New   == Kept \cup Joined
All   == Old \cup Joined
None  == 0
Empty == [promised |-> 0, round |-> 0, value |-> None]
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
RoundsOf(v) == 1..(IF v = 1 THEN RoundMax ELSE SecondMax)

Init == /\ acc = [v \in {1, 2} |-> [b \in All |-> Empty]]
        /\ promises = {} /\ votes = {} /\ requests = {} /\ learned = {} /\ fenced = {}
        /\ entered = FALSE /\ emptied = {}

(* The acceptors on which client r works on version v.                        *)
Members(v) == IF v = 1 THEN Old ELSE IF 1 \in learned THEN New ELSE Old
Where(v)   == IF Broken("newest-config") THEN {Old} \cup (IF 1 \in learned THEN {New} ELSE {}) ELSE {Members(v)}
Open(v)    == IF v = 1 THEN ~(entered /\ SecondMax > 0) ELSE entered
(* What an emptied acceptor answers counts only if nobody asks for its birth. *)
Sound(b, prepare) == \/ b \notin emptied
                     \/ "births" \notin Remedies
                     \/ Broken("no-birth")
                     \/ prepare /\ Broken("no-birth-promise")
(* After the emptying, which comes long after the fence, a closed log's old   *)
(* promises and votes have been read again, and do not count.                 *)
Holds(v, b) == ~(/\ v = 1 /\ "fence" \in Remedies /\ ~Broken("no-expiry")
                 /\ emptied # {} /\ b \in fenced)

Prepare(v, b) == \E r \in RoundsOf(v) :
  /\ Open(v) /\ Sound(b, TRUE) /\ r > acc[v][b].promised
  /\ v = 1 => b \notin fenced
  /\ \E M \in Where(v) : b \in M
  /\ acc' = [acc EXCEPT ![v][b].promised = r]
  /\ promises' = promises \cup {[v |-> v, b |-> b, r |-> r, round |-> acc[v][b].round, value |-> acc[v][b].value]}
  /\ UNCHANGED <<votes, requests, learned, fenced, entered, emptied>>
Propose(v, r) ==
  /\ Open(v) /\ \A q \in requests : q.v # v \/ q.r # r
  /\ \E M \in Where(v) : \E S \in SUBSET {p \in promises : p.v = v /\ p.r = r /\ p.b \in M /\ Holds(v, p.b)} :
       /\ Cardinality({p.b : p \in S}) >= Quorum
       /\ LET E == {p \in S : p.value # None} IN
          \E x \in (IF E = {} THEN {r} ELSE {p.value : p \in {q \in E : q.round = Max({e.round : e \in E})}}) :
            requests' = requests \cup {[v |-> v, r |-> r, x |-> x, on |-> M]}
  /\ UNCHANGED <<acc, promises, votes, learned, fenced, entered, emptied>>
Accept(b) == \E q \in requests :
  /\ Open(q.v) /\ Sound(b, FALSE) /\ b \in q.on /\ q.r >= acc[q.v][b].promised
  /\ q.v = 1 => b \notin fenced
  /\ acc' = [acc EXCEPT ![q.v][b] = [promised |-> q.r, round |-> q.r, value |-> q.x]]
  /\ votes' = votes \cup {[v |-> q.v, b |-> b, r |-> q.r, x |-> q.x]}
  /\ UNCHANGED <<promises, requests, learned, fenced, entered, emptied>>
Voters(v, r, x) == {w.b : w \in {u \in votes : u.v = v /\ u.r = r /\ u.x = x /\ Holds(v, u.b)}}
Counted(v) == {q.x : q \in {p \in requests : p.v = v /\ Cardinality(Voters(v, p.r, p.x) \cap p.on) >= Quorum}}
Learn == /\ Open(1) /\ learned' = learned \cup Counted(1) /\ learned' # learned
         /\ UNCHANGED <<acc, promises, votes, requests, fenced, entered, emptied>>
(* Anybody who knows the value of version 1 writes DECIDED into its logs.     *)
Fence(b) == /\ b \in Old \ (fenced \cup emptied) /\ learned # {} /\ "fence" \in Remedies
            /\ fenced' = fenced \cup {b}
            /\ UNCHANGED <<acc, promises, votes, requests, learned, entered, emptied>>
(* Version 2: after a change of config, only once DECIDED(1) was seen on a    *)
(* quorum of Old (whoever changed it may have died before).                   *)
Enter == /\ ~entered /\ learned # {}
         /\ ("fence" \in Remedies /\ 1 \in learned /\ ~Broken("no-fence")) =>
               (Broken("no-confirm") \/ Cardinality(fenced) >= Quorum)
         /\ entered' = TRUE
         /\ IF SecondMax = 0 THEN UNCHANGED <<acc, promises, votes, requests>>
            ELSE /\ acc' = [v \in {1, 2} |-> [b \in All |-> Empty]]
                 /\ promises' = {} /\ votes' = {} /\ requests' = {}
         /\ UNCHANGED <<learned, fenced, emptied>>
(* Removed backends are given up once version 2 was entered, and every quorum *)
(* of Old meets a fenced acceptor that stays.                                 *)
Quorums(S) == {X \in SUBSET S : Cardinality(X) >= Quorum}
Empty_(b) ==
  /\ Emptied /\ b \in Left \ emptied /\ 1 \in learned /\ entered
  /\ ("fence" \in Remedies /\ ~Broken("no-fence") /\ ~Broken("no-confirm") /\ ~Broken("leap")) =>
        IF Broken("fence-on-removed") THEN Cardinality(fenced) >= Quorum
        ELSE \A X \in Quorums(Old) : X \cap fenced \cap Kept # {}
  /\ emptied' = emptied \cup {b}
  /\ acc' = [acc EXCEPT ![1][b] = Empty]
  /\ fenced' = fenced \ {b}
  /\ UNCHANGED <<promises, votes, requests, learned, entered>>
Next == \/ \E v \in {1, 2} : \/ \E b \in All : Prepare(v, b)
                             \/ \E r \in RoundsOf(v) : Propose(v, r)
        \/ Learn \/ Enter
        \/ \E b \in All : Accept(b) \/ Fence(b) \/ Empty_(b)
----------------------------------------------------------------------------
Agreement == Cardinality(learned \cup Counted(1)) <= 1 /\ Cardinality(Counted(2)) <= 1
(* Every vote of version 2 lies on an acceptor of the config that the value   *)
(* of version 1 names.                                                        *)
ConfigSafety == \A w \in votes : w.v = 2 => learned # {} /\ w.b \in Members(2)

(* Witnesses *)
NeverEmptied     == emptied = {} \/ votes = {}
NeverOnJoined    == \A w \in votes : ~(w.b \in Joined /\ w.x \in Counted(2))
NeverStale       == ~(emptied # {} /\ \E q \in requests : q.v = 1 /\ q.x \notin learned)
Symmetry == Permutations(Kept)
=============================================================================
