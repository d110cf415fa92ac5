-------------------------------- MODULE Blocks --------------------------------
(* One version on acceptors of two forms.  Log form: as in Instances.tla.     *)
(* Block form is for stores without an atomic create (blockform.py,           *)
(* blocks.py): each device writes files of its                                *)
(* own, 1, 2, 3, ..., on each such acceptor, and an entry counts only after a *)
(* read of all devices' files that came after it stood.                       *)
(*                                                                            *)
(* A write may land at any later time, again and again, and the later landing *)
(* wins: `sent' is what was ever issued under a name, `stands' what is there. *)
(* A reader climbs a device's files up to the first that is absent.           *)
(*                                                                            *)
(* Device 1's process may start anew; its device goes on with its files.      *)
(*                                                                            *)
(* Abstracted: hash chains over files (they detect a liar, here are none),    *)
(* births, contents.  A read of all files is one step: what matters is its    *)
(* order against writes, and a file that is read early can be read again.     *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Logs, Blocks, Quorum,
          CounterMax, BootMax,
          FileMax,      \* files of a device on an acceptor
          Owner,        \* TRUE: device 1's first process owns round 0
          Reader,       \* TRUE: a third party counts votes from what it reads
          Mutants
VARIABLES acc, promises, votes, requests, boot, used, stands, sent, early, glimpsed
vars == <<acc, promises, votes, requests, boot, used, stands, sent, early, glimpsed>>

Broken(rule) == rule \in Mutants
Devices == {1, 2}
Other(d) == 3 - d
Never   == -1
None    == 0
Absent  == [kind |-> "absent", r |-> Never, x |-> None]
Max(S)  == CHOOSE x \in S : \A y \in S : y <= x
Round(n, d, b) == 100 * n + 10 * d + b
Own(d)  == 10 * d + boot[d]
Files   == 1..FileMax

Init == /\ acc = [b \in Logs |-> [promised |-> Never, round |-> Never, value |-> None]]
        /\ promises = {} /\ votes = {} /\ requests = {}
        /\ boot = [d \in Devices |-> 1] /\ used = [d \in Devices |-> {}]
        /\ stands = [b \in Blocks |-> [d \in Devices |-> [k \in Files |-> Absent]]]
        /\ sent = [b \in Blocks |-> [d \in Devices |-> [k \in Files |-> {}]]]
        /\ early = {} /\ glimpsed = {}

(* --- the proposers ---                                                      *)
Ask(d, r, x) == /\ requests' = requests \cup {[r |-> r, x |-> x]}
                /\ used' = [used EXCEPT ![d] = @ \cup {r}]
                /\ UNCHANGED <<acc, promises, votes, boot, stands, sent, early, glimpsed>>
OwnRound == Owner /\ boot[1] = 1 /\ 0 \notin used[1] /\ Ask(1, 0, Own(1))
Propose(d) == \E n \in 1..CounterMax :
  LET r == Round(n, d, boot[d]) IN
  /\ r \notin used[d]
  /\ \E S \in SUBSET {p \in promises : p.r = r} :
       /\ Cardinality({p.b : p \in S}) >= Quorum
       /\ \A p, q \in S : p.b = q.b => p = q
       /\ LET E == {p \in S : p.value # None} IN
          \E x \in (IF E = {} THEN {Own(d)} ELSE {p.value : p \in {q \in E : q.round = Max({e.round : e \in E})}}) :
            Ask(d, r, x)
Restart == /\ boot[1] < BootMax /\ boot' = [boot EXCEPT ![1] = @ + 1]
           /\ UNCHANGED <<acc, promises, votes, requests, used, stands, sent, early, glimpsed>>

(* --- log form ---                                                           *)
LogPrepare(b) == \E d \in Devices, n \in 1..CounterMax : \E i \in 1..boot[d] :
  LET r == Round(n, d, i) IN
  /\ r > acc[b].promised
  /\ acc' = [acc EXCEPT ![b].promised = r]
  /\ promises' = promises \cup {[b |-> b, r |-> r, round |-> acc[b].round, value |-> acc[b].value]}
  /\ UNCHANGED <<votes, requests, boot, used, stands, sent, early, glimpsed>>
LogAccept(b) == \E q \in requests :
  /\ q.r >= acc[b].promised
  /\ acc' = [acc EXCEPT ![b] = [promised |-> q.r, round |-> q.r, value |-> q.x]]
  /\ votes' = votes \cup {[b |-> b, r |-> q.r, x |-> q.x]}
  /\ UNCHANGED <<promises, requests, boot, used, stands, sent, early, glimpsed>>

(* --- block form ---                                                         *)
Seen(b, d) == {stands[b][d][k] : k \in {j \in Files : \A i \in 1..j : stands[b][d][i] # Absent}}
SeenAll(b) == UNION {Seen(b, d) : d \in Devices}
Top(S)     == LET A == {f \in S : f.kind = "ACCEPT"} IN
              IF A = {} THEN [round |-> Never, value |-> None]
              ELSE LET f == CHOOSE f \in A : \A g \in A : g.r <= f.r IN [round |-> f.r, value |-> f.x]
(* What the running process of d may want to say.                             *)
Sayings(d) == {[kind |-> "PREPARE", r |-> Round(n, d, boot[d]), x |-> None] : n \in 1..CounterMax}
        \cup {[kind |-> "ACCEPT", r |-> q.r, x |-> q.x] :
                q \in {p \in requests : p.r = Round(p.r \div 100, d, boot[d]) \/ (p.r = 0 /\ d = 1 /\ boot[1] = 1)}}
Issued(b, d) == {k \in Files : sent[b][d][k] # {}}
Free(b, d)   == Cardinality(Issued(b, d)) + 1
Write(b, d) == \E e \in Sayings(d) :
  /\ \A k \in Files : e \notin sent[b][d][k]
  /\ \A k \in Files : \A f \in sent[b][d][k] : f.r <= e.r
  /\ \E k \in Files :
       /\ \/ k = Free(b, d) /\ (Broken("block-hole") \/ \A j \in 1..(k - 1) : stands[b][d][j] # Absent)
          \* journalled, the bytes of a name are for ever the same; else a new process may use the name anew
          \/ /\ Broken("block-no-journal") /\ k \in Issued(b, d) /\ stands[b][d][k] = Absent
             /\ \A f \in sent[b][d][k] : f.r % 10 # boot[d]
       /\ sent' = [sent EXCEPT ![b][d][k] = @ \cup {e}]
  /\ early' = IF Broken("block-read-first") /\ \A f \in SeenAll(b) : f.r <= e.r
              THEN early \cup {[b |-> b, e |-> e, top |-> Top(SeenAll(b))]} ELSE early
  /\ UNCHANGED <<acc, promises, votes, requests, boot, used, stands, glimpsed>>
Lands(b, d) == \E k \in Files : \E e \in sent[b][d][k] :
  /\ stands[b][d][k] # e
  /\ stands' = [stands EXCEPT ![b][d][k] = e]
  /\ UNCHANGED <<acc, promises, votes, requests, boot, used, sent, early, glimpsed>>
(* The writer, once its entry stands, reads all files: a higher round means   *)
(* neither promise nor vote.                                                  *)
Result(b, e, top) ==
  IF e.kind = "PREPARE"
  THEN promises' = promises \cup {[b |-> b, r |-> e.r, round |-> top.round, value |-> top.value]} /\ UNCHANGED votes
  ELSE votes' = votes \cup {[b |-> b, r |-> e.r, x |-> e.x]} /\ UNCHANGED promises
Read(b, d) == \E e \in Sayings(d) :
  /\ \E k \in Files : stands[b][d][k] = e
  /\ IF Broken("block-read-first")
     THEN \E f \in early : f.b = b /\ f.e = e /\ Result(b, e, f.top)
     ELSE /\ \/ \A f \in SeenAll(b) : f.r <= e.r
             \/ e.kind = "ACCEPT" /\ Broken("block-no-reread")
             \/ e.r = 0 /\ Broken("block-owner-no-read")
          /\ Result(b, e, Top(SeenAll(b)))
  /\ <<promises, votes>>' # <<promises, votes>>
  /\ UNCHANGED <<acc, requests, boot, used, stands, sent, early, glimpsed>>

(* --- a third party that counts votes: it sees an ACCEPT, and after that     *)
(* reads all files.  Broken: it reads the other device's files, and then      *)
(* those in which it finds the ACCEPT ---                                     *)
Glimpse(b) ==
  /\ Reader
  /\ \E d \in Devices :
       IF Broken("block-learn-once")
       THEN glimpsed' = glimpsed \cup {[b |-> b, d |-> d, r |-> Max({Never} \cup {f.r : f \in Seen(b, Other(d))}), x |-> None]}
       ELSE \E e \in Seen(b, d) : e.kind = "ACCEPT" /\ glimpsed' = glimpsed \cup {[b |-> b, d |-> d, r |-> e.r, x |-> e.x]}
  /\ glimpsed' # glimpsed
  /\ UNCHANGED <<acc, promises, votes, requests, boot, used, stands, sent, early>>
Count(b) == \E g \in glimpsed :
  /\ g.b = b
  /\ IF Broken("block-learn-once")
     THEN \E e \in Seen(b, g.d) : /\ e.kind = "ACCEPT" /\ g.r <= e.r /\ \A f \in Seen(b, g.d) : f.r <= e.r
                                  /\ votes' = votes \cup {[b |-> b, r |-> e.r, x |-> e.x]}
     ELSE /\ \A f \in SeenAll(b) : f.r <= g.r
          /\ votes' = votes \cup {[b |-> b, r |-> g.r, x |-> g.x]}
  /\ votes' # votes
  /\ UNCHANGED <<acc, promises, requests, boot, used, stands, sent, early, glimpsed>>

Next == \/ OwnRound \/ Restart
        \/ \E d \in Devices : Propose(d)
        \/ \E b \in Logs : LogPrepare(b) \/ LogAccept(b)
        \/ \E b \in Blocks : Glimpse(b) \/ Count(b) \/ \E d \in Devices : Write(b, d) \/ Lands(b, d) \/ Read(b, d)
----------------------------------------------------------------------------
Voters(r, x) == {w.b : w \in {u \in votes : u.r = r /\ u.x = x}}
Chosen    == {q.x : q \in {p \in requests : Cardinality(Voters(p.r, p.x)) >= Quorum}}
Agreement == Cardinality(Chosen) <= 1
NoLostCommit == \A q \in requests : Cardinality(Voters(q.r, q.x)) >= Quorum => \A p \in requests : p.r >= q.r => p.x = q.x

(* Witnesses *)
NeverCarried  == \A q \in requests : ~(/\ q.r > 0 /\ q.x \div 10 # (q.r \div 10) % 10
                                       /\ Voters(q.r, q.x) \cap Blocks # {} /\ Cardinality(Voters(q.r, q.x)) >= Quorum)
NeverOwnerWins == \A q \in requests : q.r = 0 => ~(Voters(0, q.x) \cap Blocks # {} /\ Cardinality(Voters(0, q.x)) >= Quorum)
NeverResent   == \A b \in Blocks, k \in Files : \A e \in sent[b][1][k] : ~(e.r % 10 = 1 /\ boot[1] = 2 /\ stands[b][1][k] = Absent)
NeverRefused  == \A b \in Blocks : \A e \in SeenAll(b) : e.kind = "ACCEPT" => \A f \in SeenAll(b) : f.r <= e.r
Symmetry == Permutations(Logs) \cup Permutations(Blocks)
=============================================================================
