---------------------------------- MODULE Logs ----------------------------------
(* Logs as they are: numbered entries, each created only if absent, by a      *)
(* client that has read all before it.  Stands for logform.py (append, look)  *)
(* and replay.py; Instances.tla takes what is shown here for granted:         *)
(*                                                                            *)
(*   what a client takes a log to be, from what it read and from "created"    *)
(*   without another read, IS that log's beginning (`KnownTrue'); so its      *)
(*   replay gives what the acceptor would have answered.                      *)
(*                                                                            *)
(* That is a property of one log, and holds with others beside it or not: it  *)
(* is checked exhaustively for one log, and agreement over two.               *)
(*                                                                            *)
(* `net' are creates that were sent.  Each lands at any later time if its     *)
(* index is free, after its sender gave up or died, or never.  A reply may be *)
(* lost: then its client reads the slot, or never learns.  Repeating a create *)
(* is the same create.                                                        *)
(*                                                                            *)
(* One version.  Device 1 owns round 0; the others prepare; device 1's        *)
(* process may start anew, knowing nothing.                                   *)
EXTENDS Integers, Sequences, FiniteSets, TLC
CONSTANTS Devices, Backends, Quorum,
          EntryMax,     \* entries of a log
          CounterMax, BootMax,
          Mutants
VARIABLES log, net, step, round, value, known, boot
vars == <<log, net, step, round, value, known, boot>>

Broken(rule) == rule \in Mutants
Never  == -1
None   == 0
Absent == [kind |-> "absent", r |-> Never, x |-> None, by |-> 0]
Unread == [kind |-> "unread", r |-> Never, x |-> None, by |-> 0]      \* what a broken client skipped
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Round(n, d) == 100 * n + 10 * d + boot[d]
Own(d)      == 10 * d + boot[d]

(* Replay (replay.py): effective or not depends on what lies before.          *)
RECURSIVE Replay(_, _)
Replay(l, k) ==
  IF k = 0 THEN [promised |-> Never, round |-> Never, value |-> None]
  ELSE LET s == Replay(l, k - 1)
           e == l[k]
       IN CASE e.kind = "PREPARE" /\ e.r > s.promised -> [s EXCEPT !.promised = e.r]
            [] e.kind = "ACCEPT" /\ e.r >= s.promised -> [promised |-> e.r, round |-> e.r, value |-> e.x]
            [] OTHER -> s
Effective(l, k) == LET s == Replay(l, k - 1) IN CASE l[k].kind = "PREPARE" -> l[k].r > s.promised
                                                  [] l[k].kind = "ACCEPT" -> l[k].r >= s.promised
                                                  [] OTHER -> FALSE
(* What a reader finds: all up to the first absent index.                     *)
RECURSIVE Upto(_, _)
Upto(l, k) == IF k > EntryMax \/ l[k] = Absent THEN <<>> ELSE <<l[k]>> \o Upto(l, k + 1)
Shown(b) == Upto(log[b], 1)

Init == /\ log = [b \in Backends |-> [i \in 1..EntryMax |-> Absent]]
        /\ net = {}
        /\ step = [d \in Devices |-> "idle"] /\ round = [d \in Devices |-> Never] /\ value = [d \in Devices |-> None]
        /\ known = [d \in Devices |-> [b \in Backends |-> <<>>]]
        /\ boot = [d \in Devices |-> 1]

(* --- deciding ---                                                           *)
Turn(d, s, r, x) == /\ step' = [step EXCEPT ![d] = s] /\ round' = [round EXCEPT ![d] = r] /\ value' = [value EXCEPT ![d] = x]
                    /\ UNCHANGED <<log, net, known, boot>>
OwnRound == step[1] = "idle" /\ boot[1] = 1 /\ Turn(1, "ACCEPT", 0, Own(1))
NewRound(d) == \E n \in 1..CounterMax : Round(n, d) > round[d] /\ Turn(d, "PREPARE", Round(n, d), None)
Promises(d) == {b \in Backends : LET l == known[d][b] IN
                  /\ Replay(l, Len(l)).promised = round[d]
                  /\ \E k \in 1..Len(l) : l[k].by = d /\ l[k].kind = "PREPARE" /\ l[k].r = round[d]}
Evidence(d) == {Replay(known[d][b], Len(known[d][b])) : b \in Backends}
Propose(d) ==
  /\ step[d] = "PREPARE" /\ Cardinality(Promises(d)) >= Quorum
  /\ LET E == {s \in Evidence(d) : s.value # None} IN
     \E x \in (IF E = {} THEN {Own(d)} ELSE {s.value : s \in {t \in E : t.round = Max({e.round : e \in E})}}) :
       Turn(d, "ACCEPT", round[d], x)

(* --- one log ---                                                            *)
Message(d)  == [kind |-> step[d], r |-> round[d], x |-> value[d], by |-> d]
NextOf(d, b) == Len(known[d][b]) + (IF Broken("jump-index") /\ d = 1 THEN 2 ELSE 1)
Has(d, b)   == \E k \in 1..Len(known[d][b]) : known[d][b][k] = Message(d)
Create(d, b) ==
  /\ step[d] # "idle" /\ ~Has(d, b) /\ NextOf(d, b) <= EntryMax
  /\ net' = net \cup {[b |-> b, i |-> NextOf(d, b), e |-> Message(d)]} /\ net' # net
  /\ UNCHANGED <<log, step, round, value, known, boot>>
Land(m) == /\ log[m.b][m.i] = Absent \/ (Broken("overwrite") /\ log[m.b][m.i] # m.e)
           /\ log' = [log EXCEPT ![m.b][m.i] = m.e]
           /\ UNCHANGED <<net, step, round, value, known, boot>>
Know(d, b, new) == known' = [known EXCEPT ![d][b] = @ \o new] /\ UNCHANGED <<log, net, step, round, value, boot>>
Gap(d, b) == [i \in 1..(NextOf(d, b) - 1 - Len(known[d][b])) |-> Unread]
(* "Created": the client knows its log without another read.                  *)
Created(d, b) == \E m \in net : /\ m.b = b /\ m.e = Message(d) /\ m.i = NextOf(d, b) /\ ~Has(d, b)
                                /\ log[b][m.i] = m.e
                                /\ Know(d, b, Gap(d, b) \o <<m.e>>)
(* "Exists": the client reads what it met, and goes on behind it.             *)
Met(d, b) == \E m \in net : /\ m.b = b /\ m.e = Message(d) /\ m.i = NextOf(d, b) /\ ~Has(d, b)
                            /\ log[b][m.i] # Absent /\ log[b][m.i] # m.e
                            /\ Know(d, b, Gap(d, b) \o <<IF Broken("exists-is-mine") THEN m.e
                                                         ELSE IF Broken("climb-blind") THEN Unread ELSE log[b][m.i]>>)
Read(d, b) == /\ Len(known[d][b]) < Len(Shown(b))
              /\ Know(d, b, <<Shown(b)[Len(known[d][b]) + 1]>>)
Restart == /\ boot[1] < BootMax /\ boot' = [boot EXCEPT ![1] = @ + 1]
           /\ step' = [step EXCEPT ![1] = "idle"] /\ round' = [round EXCEPT ![1] = Never] /\ value' = [value EXCEPT ![1] = None]
           /\ known' = [known EXCEPT ![1] = [b \in Backends |-> <<>>]]
           /\ UNCHANGED <<log, net>>
Next == \/ OwnRound \/ Restart
        \/ \E d \in Devices : NewRound(d) \/ Propose(d) \/ \E b \in Backends : Create(d, b) \/ Created(d, b) \/ Met(d, b) \/ Read(d, b)
        \/ \E m \in net : Land(m)
----------------------------------------------------------------------------
KnownTrue == \A d \in Devices, b \in Backends :
               /\ Len(known[d][b]) <= Len(Shown(b))
               /\ \A k \in 1..Len(known[d][b]) : known[d][b][k] = Shown(b)[k]
NoHoles   == \A b \in Backends : \A i \in 2..EntryMax : log[b][i] # Absent => log[b][i - 1] # Absent
Votes(l, r, x) == \E k \in 1..Len(l) : l[k].kind = "ACCEPT" /\ l[k].r = r /\ l[k].x = x /\ Effective(l, k)
Asked     == {m.e : m \in {n \in net : n.e.kind = "ACCEPT"}}
Decides(view) == {e.x : e \in {f \in Asked : Cardinality({b \in Backends : Votes(view[b], f.r, f.x)}) >= Quorum}}
True_     == [b \in Backends |-> Shown(b)]
Agreement == Cardinality(Decides(True_) \cup UNION {Decides(known[d]) : d \in Devices}) <= 1

(* Witnesses *)
NeverMet       == \A b \in Backends : \A i \in 1..EntryMax : \A m \in net : ~(m.b = b /\ m.i = i /\ log[b][i] \notin {Absent, m.e})
NeverDeadLands == \A b \in Backends, i \in 1..EntryMax : ~(log[b][i].by = 1 /\ log[b][i].r # Never
                                                           /\ boot[1] = 2 /\ step[1] = "idle" /\ log[b][i].x = 11 /\ i > 1)
NeverVoidVote  == \A b \in Backends : \A k \in 1..Len(Shown(b)) : Shown(b)[k].kind = "ACCEPT" => Effective(Shown(b), k)
NeverCarried   == \A e \in Asked : e.r = 0 \/ e.x \div 10 = e.by
NeverOverTaken == \A d \in Devices, b \in Backends : \A k \in 1..Len(known[d][b]) : ~(known[d][b][k] = Message(d) /\ k > 2)
Symmetry == Permutations(Backends)
=============================================================================
