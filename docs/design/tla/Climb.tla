--------------------------------- MODULE Climb ---------------------------------
(* The learner's climb to the newest version, where the names of slots depend *)
(* on key epochs.  Stands for learn.py (get_recent, _gallop, _jump).          *)
(*                                                                            *)
(* The name of slot 0 of version v is made with the epoch of the state v - 1: *)
(* under another epoch's name nothing is ever found, whether v exists or not. *)
(* Versions are decided one after another while the learner reads; each may   *)
(* begin a new epoch, if a device is revoked by it.  A version that is open   *)
(* may be visible (some entry lies in its logs) with a proposed state that is *)
(* not decided, and may name an epoch that never comes to be.                 *)
(*                                                                            *)
(* The learner probes any version under the epoch of a state that it knows,   *)
(* in any order, and keeps what it found absent.  One probe stands for a      *)
(* quorum's answers to a read: who finds an entry of w knows the state w - 1, *)
(* its base; who finds w decided knows the state w.                           *)
EXTENDS Integers, FiniteSets
CONSTANTS VersionMax, EpochMax, Mutants
VARIABLES epochs,       \* epochs[v]: the epoch that the decided state v names, or -1
          opened,       \* the epoch that a proposed, undecided state of the next version names, or -1: nothing is visible
          began,        \* the newest version when the read began
          known,        \* the version that the learner knows to be decided
          using,        \* the epoch that it makes names with
          absent        \* <<version, epoch of the name>> that it found absent
vars == <<epochs, opened, began, known, using, absent>>

Broken(rule) == rule \in Mutants
Newest   == CHOOSE v \in 0..VersionMax : epochs[v] # -1 /\ \A w \in 0..VersionMax : epochs[w] # -1 => w <= v
Init == /\ \E n \in 0..VersionMax : \E f \in [0..n -> 0..EpochMax] :
             /\ f[0] = 0 /\ \A v \in 1..n : f[v] \in {f[v - 1], f[v - 1] + 1}
             /\ epochs = [v \in 0..VersionMax |-> IF v <= n THEN f[v] ELSE -1]
        /\ opened = -1 /\ began = Newest /\ known = 0 /\ using = 0 /\ absent = {}

Propose == /\ Newest < VersionMax
           /\ \E e \in {epochs[Newest], epochs[Newest] + 1} : e <= EpochMax /\ opened' = e
           /\ UNCHANGED <<epochs, began, known, using, absent>>
Decide == /\ opened # -1
          /\ epochs' = [epochs EXCEPT ![Newest + 1] = opened] /\ opened' = -1
          /\ UNCHANGED <<began, known, using, absent>>

(* Entries of w are there, under the name that the epoch e makes.             *)
Visible(w, e) == /\ w \in 1..VersionMax /\ epochs[w - 1] = e
                 /\ epochs[w] # -1 \/ (w = Newest + 1 /\ opened # -1)
Probe == \E w \in known + 1..VersionMax + 1 :
  /\ IF Visible(w, using)
     THEN /\ \/ epochs[w] # -1 /\ known' = w /\ using' = epochs[w]
             \/ known' = w - 1 /\ using' = epochs[w - 1]
          /\ absent' = {a \in absent : a[1] > known'}
     ELSE absent' = absent \cup {<<w, using>>} /\ UNCHANGED <<known, using>>
  /\ UNCHANGED <<epochs, opened, began>>
Next == Propose \/ Decide \/ Probe
----------------------------------------------------------------------------
(* The learner may end: the next version was absent, under the right name.    *)
Ends == \E a \in absent : /\ a[1] = known + 1
                          /\ \/ a[2] = epochs[known]
                             \/ Broken("epoch-name")
Recent == Ends => known >= began

(* Witnesses *)
NeverEnds     == ~(Ends /\ known > 0)
NeverMisled   == ~(\E a \in absent : a[1] <= Newest)
NeverOvertaken == ~(Ends /\ known < Newest)
=============================================================================
