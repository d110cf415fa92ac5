------------------------------- MODULE Replicas -------------------------------
(* Where copies of packs lie while the mapping changes, and which of them may *)
(* be deleted (consensus design, surplus replicas).  One copy per             *)
(* partition is required.  States follow one another as decided elsewhere:    *)
(* `states' is the chain.                                                     *)
(*                                                                            *)
(* A state has a mapping (partition to backend), the earlier mappings that    *)
(* are still read (`earlier', the config's prev_mapping), and for each        *)
(* backend how many storage ids it has had; the newest id takes new copies.   *)
(* A config that gives a backend a partition it had not before gives it a new *)
(* id.  A trim is the state that clears `earlier'.                            *)
(*                                                                            *)
(* Clients may be asleep for any time: `verified' are facts that some client  *)
(* holds (a copy was seen, long ago or not), `condemned' are deletions that   *)
(* some client may carry out at any later time.                               *)
EXTENDS Integers, FiniteSets, Sequences
CONSTANTS Partitions, Backends,
          StateMax, IdMax,
          Pusher,       \* TRUE: pack 2 is not named yet; a pusher with a base of any age uploads and commits it
          Mutants
VARIABLES states, copies, verified, condemned, born, named
vars == <<states, copies, verified, condemned, born, named>>

Broken(rule) == rule \in Mutants
Newest == states[Len(states)]
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
(* With a pusher the two packs are of one partition.                          *)
Mappings == {m \in [Partitions -> Backends] : Pusher => \A p, q \in Partitions : m[p] = m[q]}
(* The last trim under whose mapping b did not have p.                        *)
LastWithout(p, b) == Max({0} \cup {w \in 1..Len(states) : states[w].trim /\ states[w].map[p] # b})
(* A copy counts only in an id that is younger than that.                     *)
Counts(p, b, i) == born[b][i] > LastWithout(p, b) \/ Broken("trim-old-counts") \/ Broken("trim-same-id")

Init == /\ \E m \in Mappings :
             /\ states = <<[map |-> m, earlier |-> {}, ids |-> [b \in Backends |-> 1], trim |-> FALSE]>>
             /\ copies = {<<p, m[p], 1>> : p \in (IF Pusher THEN {1} ELSE Partitions)}
        /\ verified = copies /\ condemned = {}
        /\ born = [b \in Backends |-> <<1>>]            \* born[b][i]: the state that added id i
        /\ named = (IF Pusher THEN {1} ELSE Partitions)

Remap ==
  /\ Len(states) < StateMax
  /\ Newest.earlier = {} \/ Broken("trim-last-only")
  /\ \E m \in Mappings :
       LET gains(b) == \E p \in Partitions : m[p] = b /\ Newest.map[p] # b
           fresh(b) == gains(b) /\ ~Broken("trim-same-id")
       IN /\ m # Newest.map
          /\ \A b \in Backends : fresh(b) => Newest.ids[b] < IdMax                    \* the model's bound
          /\ states' = Append(states, [map |-> m, trim |-> FALSE, earlier |-> {Newest.map},
                                       ids |-> [b \in Backends |-> Newest.ids[b] + (IF fresh(b) THEN 1 ELSE 0)]])
          /\ born' = [b \in Backends |-> IF fresh(b) THEN Append(born[b], Len(states) + 1) ELSE born[b]]
  /\ UNCHANGED <<copies, verified, condemned, named>>
Trim ==
  /\ Len(states) < StateMax /\ Newest.earlier # {}
  /\ \/ \A p \in named : \E i \in 1..Newest.ids[Newest.map[p]] :
          <<p, Newest.map[p], i>> \in verified /\ Counts(p, Newest.map[p], i)
     \/ Broken("trim-unverified")
  /\ states' = Append(states, [Newest EXCEPT !.earlier = {}, !.trim = TRUE])
  /\ UNCHANGED <<copies, verified, condemned, born, named>>
(* Somebody who knows any state copies to the newest id that it names.        *)
Copy == \E p \in Partitions, w \in 1..Len(states) :
  LET b == states[w].map[p]
      c == <<p, b, states[w].ids[b]>>
  IN /\ p \in named => \E d \in copies : d[1] = p
     /\ c \notin copies /\ copies' = copies \cup {c}
     /\ UNCHANGED <<states, verified, condemned, born, named>>
Verify == \E c \in copies \ verified : verified' = verified \cup {c} /\ UNCHANGED <<states, copies, condemned, born, named>>
Condemn == \E w \in 1..Len(states), p \in Partitions, b \in Backends : \E i \in 1..Len(born[b]) :
  /\ states[w].trim /\ states[w].map[p] # b
  /\ born[b][i] < w \/ Broken("trim-new-ids")
  /\ <<p, b, i>> \notin condemned /\ condemned' = condemned \cup {<<p, b, i>>}
  /\ UNCHANGED <<states, copies, verified, born, named>>
Delete == \E c \in condemned \cap copies : copies' = copies \ {c} /\ UNCHANGED <<states, verified, condemned, born, named>>
(* The pusher's own pack: verified where its base had it mapped, and there it *)
(* must be mapped now, and count.                                             *)
Commit ==
  /\ Pusher /\ 2 \notin named /\ Len(states) < StateMax
  /\ \E w \in 1..Len(states), c \in verified :
       /\ c[1] = 2 /\ c[2] = states[w].map[2] /\ c[3] = states[w].ids[c[2]]
       /\ c[2] = Newest.map[2]
       /\ Counts(2, c[2], c[3]) \/ Broken("trim-any-place")
  /\ states' = Append(states, [Newest EXCEPT !.trim = FALSE]) /\ named' = named \cup {2}
  /\ UNCHANGED <<copies, verified, condemned, born>>
Next == Remap \/ Trim \/ Copy \/ Verify \/ Condemn \/ Delete \/ Commit
----------------------------------------------------------------------------
(* Where a reader of the newest state looks.                                  *)
Places(p) == {<<p, b, i>> : b \in {Newest.map[p]} \cup {m[p] : m \in Newest.earlier}, i \in 1..IdMax}
Readable == \A p \in named : Places(p) \cap copies # {}
(* ... and finds a copy that nobody will delete, now or later.                *)
Safe     == \A p \in named : Places(p) \cap (copies \ condemned) # {}

(* Witnesses *)
NeverBack     == ~(\E p \in Partitions, b \in Backends :                \* a backend gets a partition back; its old copy is gone
                     /\ Newest.trim /\ Newest.map[p] = b /\ LastWithout(p, b) > 0
                     /\ <<p, b, 1>> \in condemned \ copies)
NeverLatePush == ~(2 \in named /\ Len(states) > 2 /\ Pusher)
NeverStale    == \A c \in condemned : c \notin copies \/ Newest.map[c[1]] # c[2]
=============================================================================
