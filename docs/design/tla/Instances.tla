------------------------------ MODULE Instances ------------------------------
(* Versions agreed one after another, each by one instance of Paxos with the  *)
(* owner round, over acceptors that only keep logs.  Stands for paxos.py,     *)
(* replay.py, instance.py and the deciding part of learn.py.                  *)
(*                                                                            *)
(* What is abstracted.  A log is what replaying it yields (`acc') and the     *)
(* stable facts that it shows: `promises' (an effective PREPARE, with what    *)
(* had been accepted before it) and `votes' (an effective ACCEPT).  Facts     *)
(* never change, so a reader may have seen any subset of them: lost replies,  *)
(* slow backends and a minority that is down need no action of their own.     *)
(* Why an append shows exactly what the acceptor would have answered is       *)
(* Logs.tla's matter.                                                         *)
(*                                                                            *)
(* `requests' are ACCEPTs that were sent: each may land on any acceptor, at   *)
(* any later time, after its sender died, or never.  PREPAREs are not kept: a *)
(* PREPARE of any past or present incarnation may land at any time, which     *)
(* only adds behaviour.  A process that stops for ever is one that takes no   *)
(* further step.                                                              *)
(*                                                                            *)
(* A value is <<device, boot>>: what a process proposes of its own for one    *)
(* version.  The state that it follows is kept in the request, as `base'.     *)
EXTENDS Integers, Sequences, FiniteSets, TLC
CONSTANTS Devices,      \* numbers 1..9
          Acceptors,    \* model values
          Quorum,       \* how many acceptors are one
          VersionMax,   \* versions 1..VersionMax
          CounterMax,   \* n of the highest round
          BootMax,      \* how often a device's process is started
          Restarting,   \* devices whose process may stop and start anew
          Preparing,    \* devices that prepare rounds; all may use round 0 if it is theirs
          Founder,      \* who wrote the value of version 0: a device's first process; 0: nobody
          Mutants,      \* rules that are broken: names of README.md
          Marking       \* TRUE: keep `marks', for witnesses
VARIABLES acc, promises, votes, requests, chain, boot, used, marks
vars == <<acc, promises, votes, requests, chain, boot, used, marks>>

Broken(rule) == rule \in Mutants
Needed   == IF Broken("small-quorum") THEN Quorum - 1 ELSE Quorum
None     == <<0, 0>>
Never    == -1
Genesis  == IF Founder = 0 THEN None ELSE <<Founder, 1>>
Versions == 1..VersionMax
Max(S)   == CHOOSE x \in S : \A y \in S : y <= x
Min(S)   == CHOOSE x \in S : \A y \in S : y >= x

(* A round is (n, incarnation); 0 is the owner's.  A number, for speed.       *)
Incarnation(d, b)  == IF Broken("reuse-incarnation") THEN 1 ELSE b
Round(n, d, b)     == 100 * n + 10 * d + Incarnation(d, b)
Rounds(d)          == {Round(n, d, b) : n \in 1..CounterMax, b \in 1..boot[d]}
ProposerOf(r)      == (r \div 10) % 10
Next1(d)           == Len(chain[d]) + 1                 \* the version that d works on
Base(d)            == IF chain[d] = <<>> THEN Genesis ELSE chain[d][Len(chain[d])]
Own(d)             == <<d, boot[d]>>

Init == /\ acc = [a \in Acceptors |-> [v \in Versions |-> [promised |-> Never, round |-> Never, value |-> None]]]
        /\ promises = {} /\ votes = {} /\ requests = {}
        /\ chain = [d \in Devices |-> <<>>]
        /\ boot = [d \in Devices |-> 1]
        /\ used = [d \in Devices |-> {}]                \* (version, round) for which this process sent an ACCEPT
        /\ marks = {}

Owns(d) == \/ Broken("any-owner")
           \/ /\ Base(d)[1] = d
              /\ Base(d)[2] = boot[d] \/ Broken("reuse-incarnation")

Ask(d, r, x) == /\ requests' = requests \cup {[v |-> Next1(d), r |-> r, x |-> x, base |-> Base(d)]}
                /\ used' = [used EXCEPT ![d] = @ \cup {<<Next1(d), r>>}]
                /\ UNCHANGED <<acc, promises, votes, chain, boot, marks>>

(* Round 0: ACCEPT with no PREPARE before it, for one value.                  *)
OwnRound(d) ==
  /\ Next1(d) <= VersionMax /\ Owns(d)
  /\ \/ <<Next1(d), 0>> \notin used[d] /\ Ask(d, 0, Own(d))
     \/ Broken("owner-again") /\ Ask(d, 0, <<d, boot[d] + 5>>)

(* A PREPARE lands and takes effect.                                          *)
Prepare(a) == \E d \in Preparing : \E v \in 1..(IF Next1(d) < VersionMax THEN Next1(d) ELSE VersionMax), r \in Rounds(d) :
  LET s == acc[a][v] IN
  /\ r > s.promised
  /\ acc' = [acc EXCEPT ![a][v].promised = r]
  /\ promises' = promises \cup {[a |-> a, v |-> v, r |-> r, round |-> s.round, value |-> s.value]}
  /\ UNCHANGED <<votes, requests, chain, boot, used, marks>>

(* The value to propose after promises S: what was accepted in the highest    *)
(* round that they show; one's own only if nothing was.                       *)
Evidence(S) == {p \in S : p.value # None}
Values(d, S) ==
  LET E == Evidence(S)
      k == IF Broken("low-evidence") THEN Min({p.round : p \in E}) ELSE Max({p.round : p \in E})
  IN IF E = {} \/ Broken("no-evidence") THEN {Own(d)} ELSE {p.value : p \in {q \in E : q.round = k}}
Propose(d) ==
  /\ d \in Preparing /\ Next1(d) <= VersionMax
  /\ \E n \in 1..CounterMax :
       LET r == Round(n, d, boot[d]) IN
       /\ <<Next1(d), r>> \notin used[d]
       /\ \E S \in SUBSET {p \in promises : p.v = Next1(d) /\ p.r = r} :
            /\ Cardinality({p.a : p \in S}) >= Needed
            /\ \E x \in Values(d, S) : Ask(d, r, x)

(* An ACCEPT lands and takes effect.                                          *)
Voters(v, r, x) == {w.a : w \in {u \in votes : u.v = v /\ u.r = r /\ u.x = x}}
SenderGone(q) == IF q.r = 0 THEN q.x[2] < boot[q.x[1]] ELSE q.r % 10 < boot[ProposerOf(q.r)]
Accept(a) == \E q \in requests :
  LET s == acc[a][q.v] IN
  /\ q.r >= s.promised \/ Broken("no-promise")
  /\ \A w \in votes : ~(w.a = a /\ w.v = q.v /\ w.r = q.r)     \* one value per round; the same again is nothing new
  /\ acc' = [acc EXCEPT ![a][q.v] = [promised |-> Max({q.r, @.promised}), round |-> q.r, value |-> q.x]]
  /\ votes' = votes \cup {[a |-> a, v |-> q.v, r |-> q.r, x |-> q.x]}
  /\ marks' = IF Marking /\ SenderGone(q) /\ Cardinality(Voters(q.v, q.r, q.x)) = Needed - 1 THEN marks \cup {"late"}
              ELSE marks
  /\ UNCHANGED <<promises, requests, chain, boot, used>>

(* A device learns the value of its version: by a quorum's votes in one       *)
(* round, or from the base that any entry of the version after carries; who   *)
(* knows a base may have appended one.  (Knowing the last version's value     *)
(* enables nothing.)                                                          *)
Chosen(v) == {w.x : w \in {u \in votes : u.v = v /\ Cardinality(Voters(v, u.r, u.x)) >= Needed}}
Learn(d) ==
  /\ Next1(d) < VersionMax
  /\ \E x \in Chosen(Next1(d))
            \cup {chain[e][Next1(d)] : e \in {e \in Devices : Len(chain[e]) > Len(chain[d])}}
            \cup (IF Broken("one-vote") THEN {w.x : w \in {u \in votes : u.v = Next1(d)}} ELSE {})
            \cup (IF Broken("open-base") THEN {p.value : p \in {q \in promises : q.v = Next1(d)}} \ {None} ELSE {}) :
       chain' = [chain EXCEPT ![d] = Append(@, x)]
  /\ UNCHANGED <<acc, promises, votes, requests, boot, used, marks>>

(* The process ends and another begins: what it had sent may still land.      *)
Restart(d) ==
  /\ d \in Restarting /\ boot[d] < BootMax
  /\ boot' = [boot EXCEPT ![d] = @ + 1]
  /\ used' = [used EXCEPT ![d] = {}]
  /\ UNCHANGED <<acc, promises, votes, requests, chain, marks>>

Next == \/ \E d \in Devices : OwnRound(d) \/ Propose(d) \/ Learn(d) \/ Restart(d)
        \/ \E a \in Acceptors : Prepare(a) \/ Accept(a)

----------------------------------------------------------------------------
Agreement    == \A v \in Versions : Cardinality(Chosen(v)) <= 1
(* What was decided is what some process proposed as its own, on top of what  *)
(* was decided for the version before.                                        *)
Validity     == \A q \in requests :
                  q.x \in Chosen(q.v) => /\ q.x[1] \in Devices /\ q.x[2] <= boot[q.x[1]]
                                         /\ IF q.v = 1 THEN q.base = Genesis ELSE q.base \in Chosen(q.v - 1)
(* Once a quorum voted for x in round r, no higher round is proposed with     *)
(* anything else: x can be forgotten by nobody.                               *)
NoLostCommit == \A w \in votes : Cardinality(Voters(w.v, w.r, w.x)) >= Needed =>
                  \A q \in requests : (q.v = w.v /\ q.r >= w.r) => q.x = w.x
(* One value per round; of round 0 too, which has no PREPARE.                 *)
OwnerUnique  == \A p, q \in requests : (p.v = q.v /\ p.r = q.r) => p.x = q.x
Consistent   == \A d, e \in Devices : \A v \in Versions :
                  (v <= Len(chain[d]) /\ v <= Len(chain[e])) => chain[d][v] = chain[e][v]
KnownDecided == \A d \in Devices : \A v \in 1..Len(chain[d]) : chain[d][v] \in Chosen(v)

(* Witnesses: each names something that must be reachable, as an invariant    *)
(* that must fail.                                                            *)
NeverOwnerWins   == \A w \in votes : w.r = 0 => Cardinality(Voters(w.v, 0, w.x)) < Needed
NeverCarried     == \A w \in votes : (w.r > 0 /\ w.x[1] # ProposerOf(w.r)) => Cardinality(Voters(w.v, w.r, w.x)) < Needed
NeverSecond      == VersionMax = 1 \/ Chosen(VersionMax) = {}
NeverLateCounts  == "late" \notin marks
NeverOwnerBeaten == \A q \in requests : q.r = 0 =>
                      Cardinality({a \in Acceptors : acc[a][q.v].promised > 0 /\ a \notin Voters(q.v, 0, q.x)}) < Needed
NeverSplit       == \A v, w \in votes : (v.v = w.v /\ v.r # w.r) => v.x = w.x
Symmetry == Permutations(Acceptors)
=============================================================================
