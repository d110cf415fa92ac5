--------------------------------- MODULE Packs ---------------------------------
(* Which packs may be deleted while devices push and sleep: the generation    *)
(* fence (consensus design, object GC: `gen' and `min_gen' of a state).       *)
(* States follow one another as decided elsewhere.                            *)
(*                                                                            *)
(* A blob lies in a pack whole, or as a delta on another blob: a form is      *)
(* <<blob, base>>, base 0 for a whole one.  A delta's base must be whole (the *)
(* model's two depths).  A pack is [has, g, e]: its forms, the generation in  *)
(* its name, its key epoch.                                                   *)
(* A state: `master' (its blobs), `kept' (blobs of older versions that are    *)
(* not dropped), `index' (packs), gen, min, epoch.                            *)
(*                                                                            *)
(* The store is not kept: every pack may have been uploaded; `condemned' are  *)
(* those that SOME client may delete, at any later time (a collector that     *)
(* sleeps, a delete that lands late), so one can be relied on iff it is not   *)
(* condemned.  An upload that lands late only makes garbage.                  *)
(*                                                                            *)
(* A pusher begins on any newest state, rebases when it is not the newest any *)
(* more, and commits on the newest.  A collector: BEGIN (gen + 1), then mark: *)
(* packs to drop, a pack that repacks what still lives, whether history is    *)
(* forgotten; then FENCE: one commit that drops and raises min.  Revoke       *)
(* begins a new key epoch.                                                    *)
(*                                                                            *)
(* Abstracted: copies (Replicas.tla), index segments, sizes.                  *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Pushers, Collectors,
          Vocabulary,   \* contents that a pack may have: a set of sets of forms
          CommitMax, GenMax, EpochMax,
          PlanMax,      \* packs that a pusher uploads at once
          IndexMax,     \* packs of the first index
          DropMax,      \* packs that a collector drops
          Mutants, Marking
VARIABLES top, commits, condemned, push, collect, stray, marks
vars == <<top, commits, condemned, push, collect, stray, marks>>

Broken(rule) == rule \in Mutants
W(x)    == <<x, 0>>
D(x, y) == <<x, y>>
Whole2  == {{W(1)}, {W(2)}}
Delta2  == {{W(1)}, {W(2)}, {D(2, 1)}}
Delta3  == {{W(1)}, {W(3)}, {D(2, 1)}}
Cross3  == {{W(1)}, {W(3)}, {D(2, 1)}, {D(1, 3)}}     \* 1 may be repacked as a delta while 2 leans on it

Blobs    == UNION {{f[1] : f \in has} : has \in Vocabulary}
PacksOf(g, e) == {[has |-> has, g |-> g, e |-> e] : has \in Vocabulary}
AllPacks == UNION {PacksOf(g, e) : g \in 0..GenMax, e \in 0..EpochMax}
Upto(S, n) == {X \in SUBSET S : Cardinality(X) <= n}
Forms(S)   == UNION {k.has : k \in S}
BlobsIn(S) == {f[1] : f \in Forms(S)}
IsWhole(x, S)  == W(x) \in Forms(S)
Readable(x, S) == IsWhole(x, S) \/ \E y \in Blobs : D(x, y) \in Forms(S) /\ IsWhole(y, S)
(* May be reused, says the index.                                             *)
Reusable(x, S) == IF Broken("gc-reuse-headless") THEN x \in BlobsIn(S) ELSE Readable(x, S)
DeltasStand(P, S)   == \A f \in Forms(P) : f[2] = 0 \/ IsWhole(f[2], S \cup P)
DeltasPresent(P, S) == \A f \in Forms(P) : f[2] = 0 \/ f[2] \in BlobsIn(S \cup P)

IdlePush    == [at |-> "idle", fresh |-> FALSE, g |-> 0, want |-> {}, own |-> {}]
IdleCollect == [at |-> "idle", fresh |-> FALSE, g |-> 0, drop |-> {}, repacked |-> {}, forget |-> FALSE, later |-> {}, saw |-> {}]

Init == /\ \E index \in Upto(PacksOf(0, 0), IndexMax), m \in SUBSET Blobs :
             /\ m # {} /\ DeltasStand(index, {}) /\ \A x \in m : Readable(x, index)
             /\ top = [master |-> m, kept |-> {}, index |-> index, gen |-> 0, min |-> 0, epoch |-> 0]
        /\ commits = 0 /\ condemned = {} /\ stray = {} /\ marks = {}
        /\ push = [p \in Pushers |-> IdlePush] /\ collect = [c \in Collectors |-> IdleCollect]

(* One decided commit, which adds packs `new'; `by': the index that deletions *)
(* are judged by.                                                             *)
Decide(t, new, by) ==
  /\ commits < CommitMax /\ commits' = commits + 1 /\ top' = t
  /\ condemned' = condemned \cup {k \in AllPacks : /\ k \notin by
                                                   /\ IF Broken("gc-delete-unfenced") THEN t.min > 0 ELSE k.g < t.min}
  /\ stray' = stray \cup {k \in new : k.e # top.epoch}
(* Everybody else's base is old from now on.                                  *)
PushersLate    == [p \in Pushers |-> [push[p] EXCEPT !.fresh = FALSE]]
CollectorsLate(t) == [c \in Collectors |-> IF collect[c].at # "marked" THEN collect[c]
                                           ELSE [collect[c] EXCEPT !.fresh = FALSE, !.later = @ \cup t.master]]
Mark(S) == marks' = IF Marking THEN marks \cup S ELSE {}

(* --- push ---                                                               *)
Begin(p) ==
  /\ push[p].at = "idle" /\ commits < CommitMax
  /\ \E w \in SUBSET Blobs,
        P \in Upto(PacksOf(top.gen, top.epoch) \cup (IF Broken("gc-reuse-stored") THEN UNION {PacksOf(g, top.epoch) : g \in 0..top.gen} ELSE {}), PlanMax) :
       /\ w # {} /\ BlobsIn(P) \subseteq w /\ DeltasStand(P, top.index)
       /\ \A x \in w \ BlobsIn(P) : Reusable(x, top.index)
       /\ push' = [push EXCEPT ![p] = [at |-> "up", fresh |-> TRUE, g |-> top.gen, want |-> w, own |-> P]]
  /\ UNCHANGED <<top, commits, condemned, collect, stray, marks>>
Rebase(p) ==
  /\ push[p].at = "up" /\ ~push[p].fresh
  /\ LET s    == push[p]
         live == {k \in s.own : /\ k.g >= top.min \/ Broken("gc-no-rebase-fence")
                                /\ k.e = top.epoch \/ Broken("gc-no-rebase-epoch")}
         good == {k \in live : \/ Broken("gc-no-rebase-delta")
                               \/ IF Broken("gc-no-depth") THEN DeltasPresent({k}, top.index \cup live)
                                                           ELSE DeltasStand({k}, top.index \cup live)}
         miss == {x \in s.want \ BlobsIn(good) : \/ x \in BlobsIn(s.own)
                                                 \/ ~Broken("gc-no-rebase-reuse") /\ ~Reusable(x, top.index)}
         g    == IF s.g >= top.min \/ Broken("gc-no-rebase-fence") THEN s.g ELSE top.gen
     IN \E P \in Upto(PacksOf(g, top.epoch), PlanMax) :
          /\ BlobsIn(P) \subseteq miss /\ DeltasStand(P, top.index \cup good)
          /\ \A x \in miss \ BlobsIn(P) : Reusable(x, top.index)
          /\ push' = [push EXCEPT ![p] = [s EXCEPT !.fresh = TRUE, !.g = g, !.own = good \cup P]]
          /\ Mark((IF good # s.own THEN {"again"} ELSE {}) \cup
                  (IF \E k \in good : k.g = top.min /\ top.min > 0 /\ \E f \in k.has : f[2] # 0 THEN {"delta"} ELSE {}))
  /\ UNCHANGED <<top, commits, condemned, collect, stray>>
Commit(p) ==
  /\ push[p].at = "up" /\ push[p].fresh
  /\ LET t == [top EXCEPT !.master = push[p].want, !.kept = @ \cup top.master, !.index = @ \cup push[p].own] IN
       /\ Decide(t, push[p].own \ top.index, t.index)
       /\ collect' = CollectorsLate(t)
  /\ push' = [PushersLate EXCEPT ![p] = IdlePush]
  /\ UNCHANGED marks

(* --- collect ---                                                            *)
CollectBegin(c) ==
  /\ collect[c].at = "idle" /\ top.gen < GenMax
  /\ LET t == [top EXCEPT !.gen = @ + 1] IN
       /\ Decide(t, {}, t.index)
       /\ collect' = [CollectorsLate(t) EXCEPT ![c] = [IdleCollect EXCEPT !.at = "begun", !.g = t.gen]]
  /\ push' = PushersLate /\ UNCHANGED marks
CollectMark(c) ==
  /\ collect[c].at = "begun" /\ commits < CommitMax
  /\ \E drop \in Upto(top.index, DropMax), forget \in BOOLEAN, rp \in Upto(PacksOf(collect[c].g, top.epoch), 1) :
       LET roots == top.master \cup (IF forget THEN {} ELSE top.kept) IN
       /\ drop # {} /\ BlobsIn(rp) \subseteq roots /\ (top.kept \subseteq top.master => ~forget)
       /\ \A x \in roots : Readable(x, (top.index \ drop) \cup rp)
       /\ collect' = [collect EXCEPT ![c] = [@ EXCEPT !.at = "marked", !.fresh = TRUE, !.drop = drop, !.repacked = rp,
                                             !.forget = forget, !.saw = IF Broken("gc-delete-by-old") THEN top.index ELSE {}]]
  /\ UNCHANGED <<top, commits, condemned, push, stray, marks>>
CollectFence(c) ==
  /\ collect[c].at = "marked"
  /\ LET s    == collect[c]
         rp   == {k \in s.repacked : /\ k.g >= top.min \/ Broken("gc-no-repack-fence")
                                     /\ k.e = top.epoch \/ Broken("gc-no-rebase-epoch")}
         kept == IF s.forget THEN s.later ELSE top.kept
     IN \E drop \in SUBSET s.drop, g \in {s.g, top.gen} :
        LET index == (top.index \ drop) \cup rp
            t == [top EXCEPT !.index = index, !.kept = kept,
                             !.min = IF Broken("gc-fence-sinks") \/ g > top.min THEN g ELSE @]
        IN /\ IF Broken("gc-drop-late-roots") THEN drop = s.drop
              ELSE (s.fresh => drop = s.drop) /\ \A x \in top.master \cup kept : Readable(x, index)
           /\ Decide(t, rp \ top.index, IF Broken("gc-delete-by-old") THEN s.saw \cup rp ELSE index)
           /\ collect' = [CollectorsLate(t) EXCEPT ![c] = IdleCollect]
           /\ Mark((IF drop # s.drop THEN {"undrop"} ELSE {}) \cup (IF ~s.fresh THEN {"late"} ELSE {}) \cup
                   (IF rp # {} THEN {"repack"} ELSE {}) \cup (IF \E k \in drop : k.g < t.min THEN {"delete"} ELSE {}))
  /\ push' = PushersLate
Revoke ==
  /\ top.epoch < EpochMax
  /\ LET t == [top EXCEPT !.epoch = @ + 1] IN Decide(t, {}, t.index) /\ collect' = CollectorsLate(t)
  /\ push' = PushersLate /\ UNCHANGED marks

Next == \/ \E p \in Pushers : Begin(p) \/ Rebase(p) \/ Commit(p)
        \/ \E c \in Collectors : CollectBegin(c) \/ CollectMark(c) \/ CollectFence(c)
        \/ Revoke
----------------------------------------------------------------------------
(* Master and the history kept can be read, whoever deletes what he may.      *)
NoDangling == \A x \in top.master \cup top.kept : Readable(x, top.index \ condemned)
(* Nobody may delete, now or later, what the newest index names.              *)
NamedStand == top.index \cap condemned = {}
(* What a state adds is sealed under its base's epoch: whom the base revokes  *)
(* cannot read it.                                                            *)
EpochFits  == stray = {}

(* Witnesses *)
NeverAll     == ~({"undrop", "delete", "delta"} \subseteq marks)
NeverRepack  == ~({"late", "repack", "delete"} \subseteq marks)
NeverAgain   == "again" \notin marks
NeverEpochs  == ~(\E k, l \in top.index : k.e = 0 /\ l.e = 1)
Symmetry == Permutations(Pushers)
=============================================================================
