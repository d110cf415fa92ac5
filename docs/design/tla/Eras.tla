--------------------------------- MODULE Eras ---------------------------------
(* A majority of acceptors is lost for good, or a device ended the version on *)
(* them: an admin begins a new era with what the reachable ones hold.  Stands *)
(* for new_era.py and eras.py (consensus.md, 5).                              *)
(*                                                                            *)
(* Era 1: version 1 is open, on acceptors B; device 1 owns round 0, device 2  *)
(* prepares round 1.  Facts are stable, as in Instances.tla, and any request  *)
(* may land at any time: before and after the recovery, also on acceptors     *)
(* that were thought lost.  Both devices may sleep for as long as they like.  *)
(* Era 2: an admin that reaches one acceptor signs a record; its first state  *)
(* counts as decided by that signature.  The highest value that the reached   *)
(* acceptor had accepted goes into it as CONTENT: a state of era 1 it is not. *)
(*                                                                            *)
(* With Poisons > 0 a valid device lies: it puts garbage into the logs of era *)
(* 1, on as many acceptors.  What they had accepted stays evidence, but they  *)
(* promise and take nothing more.  Where no quorum is left so, an admin that  *)
(* reaches them all recovers; its record may revoke the liar, with new keys.  *)
(* With Rots, garbage may lie before what was accepted, and hide it.          *)
(* The names of the logs of era 2 are made with its keys, and the liar puts   *)
(* garbage there, too, where it has them.                                     *)
(*                                                                            *)
(* Abstracted: what merging content means; who the admin is (any record here  *)
(* is signed); versions after the first of either era.                        *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Acceptors, Quorum,
          Admins,       \* numbers from 3 on: those who may recover, each once
          Poisons,      \* how many acceptors the liar poisons in era 1
          Rots,         \* TRUE: garbage may hide what was accepted before
          Revokes,      \* TRUE: an admin that recovers from garbage revokes the liar
          Mutants
VARIABLES acc, promises, votes, requests,
          old,          \* old[c]: the value of version 1 of era 1 as c knows it to be decided; 0: not known
          follows,      \* follows[c]: records whose first state c holds
          local,        \* local[c]: what c keeps as its own change, to be pushed in era 2
          stopped,      \* clients that saw two records for one era, and said so
          records,      \* what admins signed
          poisoned,     \* acceptors whose log of era 1 holds garbage
          hidden,       \* those of them where it hides what was accepted
          again,        \* records whose era the liar ended as well
          rings         \* rings[c]: whose keys of era 2 c holds: a record's, the liar's (2), or none (0)
old1 == <<poisoned, hidden>>
new2 == <<again, rings>>
vars == <<acc, promises, votes, requests, old, follows, local, stopped, records, poisoned, hidden, again, rings>>

Broken(rule) == rule \in Mutants
Devices == {1, 2}
Clients == Devices \cup Admins
Never == -1
None  == 0
Max(S) == CHOOSE x \in S : \A y \in S : y <= x

Init == /\ acc = [a \in Acceptors |-> [promised |-> Never, round |-> Never, value |-> None]]
        /\ promises = {} /\ votes = {} /\ requests = {} /\ records = {}
        /\ old = [c \in Clients |-> None]
        /\ follows = [c \in Clients |-> {}] /\ local = [c \in Clients |-> {}] /\ stopped = {}
        /\ poisoned = {} /\ hidden = {} /\ again = {} /\ rings = [c \in Clients |-> 0]
InOldEra(c) == follows[c] = {} /\ c \notin stopped

(* --- era 1 ---                                                              *)
Ask(r, x) == /\ \A q \in requests : q.r # r
             /\ requests' = requests \cup {[r |-> r, x |-> x]}
             /\ UNCHANGED <<acc, promises, votes, old, follows, local, stopped, records, old1, new2>>
OwnRound == InOldEra(1) /\ Ask(0, 1)
Propose  == /\ InOldEra(2)
            /\ \E S \in SUBSET promises :
                 /\ Cardinality({p.a : p \in S}) >= Quorum
                 /\ LET E == {p \in S : p.value # None} IN
                    \E x \in (IF E = {} THEN {2} ELSE {p.value : p \in {q \in E : q.round = Max({e.round : e \in E})}}) : Ask(1, x)
Prepare(a) == /\ acc[a].promised < 1 /\ a \notin poisoned
              /\ acc' = [acc EXCEPT ![a].promised = 1]
              /\ promises' = promises \cup {[a |-> a, round |-> acc[a].round, value |-> acc[a].value]}
              /\ UNCHANGED <<votes, requests, old, follows, local, stopped, records, old1, new2>>
Accept(a) == \E q \in requests :
  /\ q.r >= acc[a].promised /\ q.r # acc[a].round /\ a \notin poisoned
  /\ acc' = [acc EXCEPT ![a] = [promised |-> q.r, round |-> q.r, value |-> q.x]]
  /\ votes' = votes \cup {[a |-> a, r |-> q.r, x |-> q.x]}
  /\ UNCHANGED <<promises, requests, old, follows, local, stopped, records, old1, new2>>
Voters(r, x) == {w.a : w \in {u \in votes : u.r = r /\ u.x = x}}
Chosen == {w.x : w \in {u \in votes : Cardinality(Voters(u.r, u.x)) >= Quorum}}
Learn(c) == /\ InOldEra(c) /\ old[c] = None /\ Chosen # {}
            /\ old' = [old EXCEPT ![c] = CHOOSE x \in Chosen : TRUE]
            /\ UNCHANGED <<acc, promises, votes, requests, follows, local, stopped, records, old1, new2>>

Poison(a) == /\ Cardinality(poisoned) < Poisons /\ a \notin poisoned /\ poisoned' = poisoned \cup {a}
             /\ \/ UNCHANGED hidden
                \/ Rots /\ hidden' = hidden \cup {a}
             /\ UNCHANGED <<acc, promises, votes, requests, old, follows, local, stopped, records, new2>>

(* --- recovery ---                                                           *)
Known(c) == {old[c]} \ {None}
(* What an acceptor shows.  The highest round that is found is carried.       *)
Shows(a)  == IF a \in hidden \/ (Broken("era-poison-empty") /\ a \in poisoned) THEN [round |-> Never, value |-> None]
             ELSE [round |-> acc[a].round, value |-> acc[a].value]
Found(S)  == LET T == {a \in S : Shows(a).value # None}
                 Top == {a \in T : \A b \in T : Shows(b).round <= Shows(a).round}
             IN {Shows(a).value : a \in IF Broken("era-any-value") THEN T ELSE Top}
Reached == {S \in SUBSET Acceptors : S # {} /\ Cardinality(S \ poisoned) < Quorum /\ (Poisons = 0 => Cardinality(S) < Quorum)}
Recover(c) == \E S \in Reached :
  /\ InOldEra(c) /\ \A R \in records : R.by # c
  /\ \A R \in records : R.at \cap S = {}             \* create-if-absent: who finds a record follows it
  /\ \E x \in (IF Found(S) = {} THEN {None} ELSE Found(S)) :
     LET found   == {x} \ {None}
         adopted == IF Broken("era-adopt") /\ old[c] = None THEN x ELSE old[c]
         seen    == {acc[a].value : a \in S \ hidden} \cap Chosen
     IN /\ records' = records \cup {[by |-> c, at |-> S, state |-> adopted, revokes |-> Revokes /\ poisoned # {},
                                     content |-> Known(c) \cup (IF Broken("era-drop") THEN {} ELSE found),
                                     due |-> Known(c) \cup seen]}
        /\ old' = [old EXCEPT ![c] = adopted]
  /\ follows' = [follows EXCEPT ![c] = {c}] /\ rings' = [rings EXCEPT ![c] = c]
  /\ UNCHANGED <<acc, promises, votes, requests, local, stopped, old1, again>>
(* The liar follows the record, too, but holds no keys of an era that revokes *)
(* it.  A ring of its own for that era lies on the backends.                  *)
EndAgain == \E R \in records : /\ poisoned # {} /\ R.by \notin again /\ (~R.revokes \/ Broken("era-old-names"))
                              /\ again' = again \cup {R.by}
                              /\ UNCHANGED <<acc, promises, votes, requests, old, follows, local, stopped, records, old1, rings>>
(* Any client, any time later, that comes upon a record.  What it knows, or   *)
(* proposed, and the record does not carry, it keeps as a change of its own.  *)
Proposed(c) == IF \E q \in requests : q.x = c /\ c \in Devices THEN {c} ELSE {}
Follow(c) == \E R \in records :
  /\ c \notin stopped /\ R.by \notin follows[c]
  /\ IF ~Broken("era-two-records") /\ (follows[c] # {} \/ \E X \in records : X # R)
     THEN stopped' = stopped \cup {c} /\ UNCHANGED <<old, follows, local, rings>>
     ELSE /\ follows' = [follows EXCEPT ![c] = @ \cup {R.by}]
          /\ \E ring \in {R.by} \cup (IF R.revokes /\ Broken("era-any-ring") THEN {2} ELSE {}) : rings' = [rings EXCEPT ![c] = ring]
          /\ local' = IF Broken("era-no-merge") THEN local
                      ELSE [local EXCEPT ![c] = @ \cup ((Known(c) \cup Proposed(c)) \ R.content)]
          /\ old' = [old EXCEPT ![c] = IF @ = None THEN R.state ELSE @]
          /\ UNCHANGED stopped
  /\ UNCHANGED <<acc, promises, votes, requests, records, old1, again>>

Next == \/ OwnRound \/ Propose
        \/ \E a \in Acceptors : Prepare(a) \/ Accept(a) \/ Poison(a)
        \/ EndAgain
        \/ \E c \in Clients : Learn(c) \/ Follow(c)
        \/ \E c \in Admins : Recover(c)
----------------------------------------------------------------------------
Content   == UNION {R.content : R \in records}
Agreement == Cardinality(Chosen) <= 1
(* What a client holds as a state of era 1 was decided there.                 *)
KnownDecided == \A c \in Clients : Known(c) \subseteq Chosen
OneState     == \A c, d \in Clients : (old[c] # None /\ old[d] # None) => old[c] = old[d]
(* No client holds two first states of era 2.                                 *)
OneEra       == \A c \in Clients : Cardinality(follows[c]) <= 1
(* What the admin knew, and what was decided and accepted where it looked, is *)
(* in the record.                                                             *)
Kept         == \A R \in records : R.due \subseteq R.content
(* What anybody learned as decided is in era 2, or a client has it as its own *)
(* change, or has not followed yet.                                           *)
NotLost      == records # {} => \A c \in Clients : \A x \in Known(c) :
                  \/ x \in Content
                  \/ \E d \in Clients : x \in local[d] \/ (follows[d] = {} /\ x \in Known(d))
(* Whom a record revokes does not end its era, and leads nobody to keys of its *)
(* own.                                                                       *)
Through      == \A R \in records : R.revokes => R.by \notin again
OwnKeys      == \A c \in Clients : rings[c] \in {0} \cup {R.by : R \in records}

(* Witnesses.  The first three are promises that nobody can make.             *)
NeverLateChosen == records # {} => Chosen \subseteq Content
NeverKnownLost  == records # {} => \A c \in Clients : Known(c) \subseteq Content
NeverTwoEras    == \A c, d \in Clients : (follows[c] # {} /\ follows[d] # {}) => follows[c] = follows[d]
NeverCarried    == \A R \in records : R.content = {} \/ R.content \subseteq {R.state}
NeverMerged     == \A c \in Devices : ~(follows[c] # {} /\ local[c] # {} /\ local[c] \subseteq Chosen)
NeverStopped    == stopped = {}
NeverEnded      == ~(Cardinality(Acceptors \ poisoned) < Quorum /\ Chosen # {} /\ \E R \in records : R.at = Acceptors)
NeverAgain      == again = {}
NeverHidden     == \A R \in records : R.at = Acceptors => Chosen \subseteq R.content
NeverLateVote   == ~(\E R \in records : R.revokes /\ R.at # Acceptors /\ Chosen # {} /\ ~(Chosen \subseteq R.content) /\ \E c \in Devices : R.by \in follows[c])
Symmetry == Permutations(Acceptors)
=============================================================================
