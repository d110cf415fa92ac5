-------------------------------- MODULE Floors --------------------------------
(* Old logs are deleted: the floor fence (consensus design, log growth).      *)
(* Stands for floors.py and for what asks it: look and append in logform.py.  *)
(*                                                                            *)
(* One version, 1, in detail: owner (device 1, round 0) and a rival (device   *)
(* 2, round 1) on passive acceptors, as in Instances.tla.  After its value is *)
(* decided, and versions after it up to the floors, collectors put floor 1    *)
(* and then floor 2 on acceptors (both lie above version 1) and delete the    *)
(* logs of version 1 there.  A create in a deleted log SUCCEEDS, and a look   *)
(* at one finds nothing: what such a log shows no client can tell from what a *)
(* true one shows.                                                            *)
(*                                                                            *)
(* Replies.  What lands while its reader still trusts its look at the floor   *)
(* is taken for counted at once: a fact stays one, so that counting it later  *)
(* adds nothing, and a look that was too old does not become young again.     *)
(*                                                                            *)
(* Time.  The grace is much longer than the age up to which a client trusts   *)
(* its look at a floor.  So when the grace of a floor on acceptor a is over,  *)
(* every look at a that did not find that floor has become too old: Grace     *)
(* takes a out of every client's `checked'.  This is all that is assumed of   *)
(* clocks.  Clients may be asleep at any time, for any time.                  *)
(*                                                                            *)
(* Abstracted: deleting a log takes no time; later versions; births.          *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Acceptors, Quorum,
          Floors,       \* 1, or 2 for a second floor above the first
          FloorLeast,   \* acceptors that hold a floor before logs are deleted: no matter of safety, as it turns out
          FloorEarly,   \* TRUE: floors may be put before the version is decided: as little a matter of safety
          Learner,      \* TRUE: a learner looks for version 1, too
          Mutants
VARIABLES acc,
          promises,     \* that device 2 trusts
          votes,        \* that landed in true logs
          ghosts,       \* that landed in deleted ones, and that a reader trusts
          requests,
          floors,       \* floors[a]: the floor objects on a
          aged,         \* aged[a]: those whose grace is over, by the clock of some collector that read them there
          trimmed,      \* acceptors whose log of version 1 was deleted
          checked,      \* checked[c]: acceptors whose floor c has seen to be absent, not long ago
          began, quiet  \* of the learner: had version 1 been decided when its read began; acceptors that showed nothing
vars == <<acc, promises, votes, ghosts, requests, floors, aged, trimmed, checked, began, quiet>>

Broken(rule) == rule \in Mutants
Never   == -1
None    == 0
Clients == {2, 3}       \* the rival, and a reader: anybody who counts votes, the owner's own or others', or looks for news
Empty   == [promised |-> Never, round |-> Never, value |-> None]
Max(S)  == CHOOSE x \in S : \A y \in S : y <= x

Init == /\ acc = [a \in Acceptors |-> Empty]
        /\ promises = {} /\ votes = {} /\ ghosts = {} /\ requests = {}
        /\ floors = [a \in Acceptors |-> {}] /\ aged = [a \in Acceptors |-> {}] /\ trimmed = {}
        /\ checked = [c \in Clients |-> Acceptors]       \* all looked when nothing was there yet
        /\ began = "no" /\ quiet = {}
Voters(S, r, x) == {w.a : w \in {u \in S : u.r = r /\ u.x = x}}
Chosen  == {w.x : w \in {u \in votes : Cardinality(Voters(votes, u.r, u.x)) >= Quorum}}

(* A reply, or what was read, counts only with a look at the floor that is    *)
(* not too old when the reply is there.                                       *)
Trusts(c, a) == a \in checked[c] \/ Broken("no-floor")

(* --- the proposers ---                                                      *)
OwnRound == /\ \A q \in requests : q.r # 0
            /\ requests' = requests \cup {[r |-> 0, x |-> 1]}
            /\ UNCHANGED <<acc, promises, votes, ghosts, floors, aged, trimmed, checked, began, quiet>>
Prepare(a) ==
  /\ acc[a].promised < 1
  /\ acc' = [acc EXCEPT ![a].promised = 1]
  /\ promises' = IF Trusts(2, a) THEN promises \cup {[a |-> a, round |-> acc[a].round, value |-> acc[a].value]} ELSE promises
  /\ UNCHANGED <<votes, ghosts, requests, floors, aged, trimmed, checked, began, quiet>>
Propose ==
  /\ \A q \in requests : q.r # 1
  /\ \E S \in SUBSET promises :
       /\ Cardinality({p.a : p \in S}) >= Quorum
       /\ LET E == {p \in S : p.value # None} IN
          \E x \in (IF E = {} THEN {2} ELSE {p.value : p \in {q \in E : q.round = Max({e.round : e \in E})}}) :
            requests' = requests \cup {[r |-> 1, x |-> x]}
  /\ UNCHANGED <<acc, promises, votes, ghosts, floors, aged, trimmed, checked, began, quiet>>
Accept(a) == \E q \in requests :
  LET w == [a |-> a, r |-> q.r, x |-> q.x] IN
  /\ q.r >= acc[a].promised /\ acc[a].round # q.r
  /\ acc' = [acc EXCEPT ![a] = [promised |-> q.r, round |-> q.r, value |-> q.x]]
  /\ IF a \notin trimmed THEN votes' = votes \cup {w} /\ UNCHANGED ghosts
     ELSE /\ ghosts' = IF Trusts(3, a) \/ Broken("read-no-floor") THEN ghosts \cup ({w} \ votes) ELSE ghosts
          /\ UNCHANGED votes
  /\ UNCHANGED <<promises, requests, floors, aged, trimmed, checked, began, quiet>>

(* Looks at the next floor above version 1: that is floor 1, and only it.     *)
Look(c, a) ==
  /\ a \notin checked[c] /\ 1 \notin floors[a]
  /\ checked' = [checked EXCEPT ![c] = @ \cup {a}]
  /\ UNCHANGED <<acc, promises, votes, ghosts, requests, floors, aged, trimmed, began, quiet>>

(* --- the learner at version 0: is there a version 1? ---                    *)
Begin == /\ Learner /\ began = "no" /\ began' = (IF Chosen = {} THEN "open" ELSE "decided")
         /\ UNCHANGED <<acc, promises, votes, ghosts, requests, floors, aged, trimmed, checked, quiet>>
Absent(a) == /\ began # "no" /\ acc[a] = Empty
             /\ a \in checked[3] \/ Broken("no-floor") \/ Broken("learn-no-floor")
             /\ quiet' = quiet \cup {a}
             /\ UNCHANGED <<acc, promises, votes, ghosts, requests, floors, aged, trimmed, checked, began>>

(* --- collectors ---                                                         *)
PutFloor(a, f) ==
  /\ Chosen # {} \/ FloorEarly
  /\ f \notin floors[a]
  /\ f = 2 => \/ 1 \in floors[a]                                       \* none is skipped, on any acceptor
              \/ Broken("floor-skips") /\ \E b \in Acceptors : 1 \in floors[b]
  /\ floors' = [floors EXCEPT ![a] = @ \cup {f}]
  /\ UNCHANGED <<acc, promises, votes, ghosts, requests, aged, trimmed, checked, began, quiet>>
Grace(a, f) ==
  /\ f \in floors[a] /\ f \notin aged[a]
  /\ aged' = [aged EXCEPT ![a] = @ \cup {f}]
  /\ \E S \in IF Broken("floor-clock-stops") THEN SUBSET Clients ELSE {{}} :        \* whose clock stood still meanwhile
       checked' = [c \in Clients |-> IF c \in S \/ Broken("floor-no-elapsed") THEN checked[c] ELSE checked[c] \ {a}]
  /\ UNCHANGED <<acc, promises, votes, ghosts, requests, floors, trimmed, began, quiet>>
Stands(f) == Cardinality({a \in Acceptors : f \in floors[a]}) >= FloorLeast
Trim(a) ==
  /\ a \notin trimmed
  /\ \E f \in 1..Floors :
       /\ Stands(f)
       /\ \/ f \in aged[a]
          \/ f \in floors[a] /\ Broken("floor-no-wait")
          \/ Broken("floor-everywhere") /\ \E b \in Acceptors : f \in aged[b]
  /\ trimmed' = trimmed \cup {a}
  /\ acc' = [acc EXCEPT ![a] = Empty]
  /\ UNCHANGED <<promises, votes, ghosts, requests, floors, aged, checked, began, quiet>>

Next == \/ OwnRound \/ Propose \/ Begin
        \/ \E c \in Clients, a \in Acceptors : Look(c, a)
        \/ \E a \in Acceptors : Prepare(a) \/ Accept(a) \/ Absent(a) \/ Trim(a)
        \/ \E a \in Acceptors, f \in 1..Floors : PutFloor(a, f) \/ Grace(a, f)
----------------------------------------------------------------------------
Counted   == votes \cup ghosts
Believed  == {w.x : w \in {u \in Counted : Cardinality(Voters(Counted, u.r, u.x)) >= Quorum}}
Agreement == Cardinality(Believed) <= 1
(* Nobody counts what landed in a deleted log.                                *)
Truth     == ghosts = {}
(* A read that began after version 1 was decided does not end with version 0. *)
Recent    == ~(began = "decided" /\ Cardinality(quiet) >= Quorum)

(* Witnesses *)
NeverTrimmed  == Cardinality(trimmed) < Quorum
(* A deleted version looks decided again, and otherwise; nobody believes it.  *)
NeverGhost    == \A x \in {1, 2} : x \in Chosen \/ Cardinality({a \in trimmed : acc[a].value = x}) < Quorum
NeverNewest   == ~(began = "open" /\ Cardinality(quiet) >= Quorum)
NeverLateRead == ~(began = "decided" /\ \E a \in Acceptors : acc[a] = Empty /\ a \in trimmed)
NeverSecondFloor == \A a \in Acceptors : 2 \notin aged[a]
Symmetry == Permutations(Acceptors)
=============================================================================
