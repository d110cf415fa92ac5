--------------------------------- MODULE Skip ---------------------------------
(* A version that cannot be read, and the way past it: an admin has the tree  *)
(* of the last good version agreed on top (format-agreement.md, 6.4).  Stands *)
(* for sync/skip.py, keys/policy.py, and for what a pull merges from (`pull`).*)
(* `skips' of a version is what the policy says that it names.  The model     *)
(* keeps less of it than the code: a skip may miss those of versions that     *)
(* cannot be read.                                                            *)
(*                                                                            *)
(* The chain of versions is agreed (Instances, Votes).  Version 1 has the     *)
(* file 10, and every device is at it.  A tree is a set of files: a file does *)
(* not change, it is made and deleted (a changed file is another one).        *)
(* Device d is honest, makes the file d, and deletes at most one.  Files that *)
(* no backend has are `gone': each device has what its folder has.            *)
(*                                                                            *)
(* Device 0 lies, as `Lies' says:                                             *)
(*   "lost"    its file 3 is in its tree and on no backend                    *)
(*   "delete"  it deletes what it likes                                       *)
(*   "forge"   it says that versions were skipped, unsigned                   *)
(*   "omit"    it leaves out what the version before says of skips: VOID, for *)
(*             the policy says it, which the admin key signs                  *)
(* And ("lose") a backend loses what a device pushed; ("return") what was     *)
(* gone is there again.                                                       *)
(*                                                                            *)
(* Abstracted: contents of files, conflicts (both sides are kept), keys; a    *)
(* version whose snapshot or index cannot be read is one whose file cannot.   *)
EXTENDS Integers, Sequences, FiniteSets, TLC
CONSTANTS Devices,      \* honest ones
          Admins,       \* those of them where the passphrase is typed
          VersionMax, LiesMax, DropsMax, Lies, Mutants
VARIABLES chain,        \* chain[v]: by, tree, index (files that it says are stored), skips
          gone,         \* files that no backend has
          base, work,   \* of each device: the version that its folder is at, and the files in it
          plan,         \* plan[a]: what an admin found: the newest version then, and the last good one
          held,         \* held[d]: files that were ever in d's folder
          dropped,      \* dropped[d]: files that d deleted itself
          removed,      \* files that somebody deleted on purpose, the liar too
          lies          \* how many times device 0, or a backend, did something
vars == <<chain, gone, base, work, plan, held, dropped, removed, lies>>

Broken(rule) == rule \in Mutants
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Newest == Len(chain)
Top    == chain[Newest]
None   == [newest |-> 0, good |-> 0]
Skipped == \E v \in 1..Newest : chain[v].by \in Devices /\ \E s \in chain[v].skips : s.signed

Init == /\ chain = <<[by |-> 1, tree |-> {10}, index |-> {10}, skips |-> {}]>>
        /\ gone = {} /\ lies = 0 /\ held = [d \in Devices |-> {10}] /\ removed = {}
        /\ base = [d \in Devices |-> 1] /\ work = [d \in Devices |-> {10}]
        /\ dropped = [d \in Devices |-> {}] /\ plan = [d \in Devices |-> None]

(* --- what people do in their folders ---                                    *)
Make(d) == /\ d \notin held[d] /\ work' = [work EXCEPT ![d] = @ \cup {d}] /\ held' = [held EXCEPT ![d] = @ \cup {d}]
           /\ UNCHANGED <<chain, gone, base, plan, dropped, removed, lies>>
Drop(d) == \E f \in work[d] :
  /\ Cardinality(UNION {dropped[e] : e \in Devices}) < DropsMax
  /\ work' = [work EXCEPT ![d] = @ \ {f}] /\ dropped' = [dropped EXCEPT ![d] = @ \cup {f}]
  /\ removed' = removed \cup {f}
  /\ UNCHANGED <<chain, gone, base, plan, held, lies>>

(* --- push and pull ---                                                      *)
(* A push relies on what the index of its base names, and stores the rest.    *)
Push(d) ==
  /\ base[d] = Newest /\ Newest < VersionMax /\ work[d] # Top.tree
  /\ chain' = Append(chain, [by |-> d, tree |-> work[d], index |-> Top.index \cup work[d],
                             skips |-> IF Broken("skip-not-repeated") THEN {} ELSE Top.skips])
  /\ gone' = gone \ (work[d] \ Top.index)
  /\ base' = [base EXCEPT ![d] = Newest + 1]
  /\ UNCHANGED <<work, plan, held, dropped, removed, lies>>
(* A pull merges from the tree that its folder is at; from the last good one, *)
(* where that version was skipped, by the newest skip that says so.  What the *)
(* skipped version had deleted is brought again: it is no deletion of d's.    *)
Covering(d) == {s \in Top.skips : s.good < base[d] /\ base[d] < s.at /\ (s.signed \/ Broken("skip-unsigned"))}
Pull(d) ==
  /\ base[d] < Newest
  /\ LET here  == chain[base[d]].tree
         cover == Covering(d)
         s     == IF Broken("skip-oldest") THEN CHOOSE x \in cover : \A y \in cover : x.at <= y.at
                  ELSE CHOOSE x \in cover : \A y \in cover : y.at <= x.at
         from  == IF cover = {} \/ Broken("skip-own-base") THEN here ELSE s.tree
         mine  == work[d] \cup (IF cover = {} \/ Broken("skip-no-return") THEN {} ELSE from \ here)
     IN /\ (Top.tree \ (from \cup work[d])) \cup ((mine \ work[d]) \cap Top.tree) \subseteq Top.index \ gone
        /\ work' = [work EXCEPT ![d] = (mine \cap Top.tree) \cup (mine \ from) \cup (Top.tree \ from)]
  /\ base' = [base EXCEPT ![d] = Newest]
  /\ UNCHANGED <<chain, gone, plan, held, dropped, removed, lies>>

(* --- the skip ---                                                           *)
(* The last good version: the folder's own, whose files are here, or a later  *)
(* one all of whose other files can be had.                                   *)
Good(a, v) == v = base[a] \/ (v > base[a] /\ chain[v].tree \ chain[base[a]].tree \subseteq chain[v].index \ gone)
Find(a) ==
  /\ LET good == Max({v \in 1..Newest : Good(a, v)})
     IN good < Newest /\ plan' = [plan EXCEPT ![a] = [newest |-> Newest, good |-> good]]
  /\ plan'[a] # plan[a]
  /\ UNCHANGED <<chain, gone, base, work, held, dropped, removed, lies>>
(* Proposed on the newest version that was looked at.  Has somebody else been *)
(* faster, it is found anew.                                                  *)
Commit(a) ==
  /\ plan[a] # None /\ Newest < VersionMax
  /\ plan[a].newest = Newest \/ Broken("skip-late")
  /\ \E read \in BOOLEAN :                        \* whether the snapshots that are passed over can be read
     LET good == chain[plan[a].good]
         told == good.skips \cup (IF read THEN UNION {chain[v].skips : v \in plan[a].good..plan[a].newest} ELSE {})
         skip == [good |-> plan[a].good, at |-> plan[a].newest + 1, tree |-> good.tree, signed |-> TRUE]
     IN chain' = Append(chain, [by |-> a, tree |-> good.tree,
                                index |-> IF Broken("skip-newest-index") THEN Top.index ELSE good.index,
                                skips |-> {skip} \cup (IF Broken("skip-forgets") THEN {} ELSE {t \in told : t.signed})])
  /\ plan' = [plan EXCEPT ![a] = None]
  /\ UNCHANGED <<gone, base, work, held, dropped, removed, lies>>

(* --- the liar, and backends ---                                             *)
LiarPushes(tree, skips, lost) ==
  /\ Newest < VersionMax
  /\ chain' = Append(chain, [by |-> 0, tree |-> tree, index |-> Top.index \cup tree, skips |-> skips])
  /\ gone' = gone \cup lost /\ removed' = removed \cup (Top.tree \ tree)
Lie ==
  /\ lies < LiesMax /\ lies' = lies + 1
  /\ \/ "lost" \in Lies /\ 3 \notin Top.tree /\ 3 \notin Top.index /\ LiarPushes(Top.tree \cup {3}, Top.skips, {3})
     \/ "delete" \in Lies /\ \E f \in Top.tree : LiarPushes(Top.tree \ {f}, Top.skips, {})
     \/ "forge" \in Lies /\ \E g \in 1..(Newest - 1) : \E t \in {Top.tree, chain[g].tree} :
          LiarPushes(t, Top.skips \cup {[good |-> g, at |-> Newest + 1, tree |-> chain[g].tree, signed |-> FALSE]}, {})
     \/ "omit" \in Lies /\ Broken("skip-omitted") /\ Top.skips # {} /\ LiarPushes(Top.tree, {}, {})
     \/ /\ "lose" \in Lies /\ ~Skipped /\ Newest < VersionMax
        /\ \E f \in Top.tree \ gone : gone' = gone \cup {f}
        /\ UNCHANGED <<chain, removed>>
     \/ /\ "return" \in Lies /\ \E f \in gone : gone' = gone \ {f}
        /\ UNCHANGED <<chain, removed>>
  /\ UNCHANGED <<base, work, plan, held, dropped>>

Next == \/ \E d \in Devices : Make(d) \/ Drop(d) \/ Push(d) \/ Pull(d)
        \/ \E a \in Admins : Find(a) \/ Commit(a)
        \/ Lie
----------------------------------------------------------------------------
(* What was ever in a folder is there, unless somebody deleted it: nothing    *)
(* that was made, pushed or pulled goes because of a skip.                    *)
Kept     == \A d \in Devices : held[d] \ removed \subseteq work[d]
(* What is in a folder beyond its version is its device's own, or was in a    *)
(* version that an admin had skipped.  So a skip that no admin signed brings  *)
(* back nothing.                                                              *)
Released == UNION {chain[u].tree : u \in {w \in 1..Newest : \E v \in 1..Newest : \E s \in chain[v].skips :
                                                            s.signed /\ s.good < w /\ w < s.at}}
Own      == \A d \in Devices : work[d] \ chain[base[d]].tree \subseteq {d} \cup Released
(* What is missing in a folder was deleted by its device: nothing of what was *)
(* skipped is a deletion.                                                     *)
Missing  == \A d \in Devices : chain[base[d]].tree \ work[d] \subseteq dropped[d]
(* What a device pushes on top of a skip is stored, where no lie of the        *)
(* liar's own file says that it was.                                         *)
Skips(v) == {s \in chain[v].skips : s.signed /\ s.at = v}
Stored   == \A v \in 2..Newest : (chain[v].by \in Devices /\ Skips(v) = {} /\ \E s \in chain[v - 1].skips : s.signed) =>
              (chain[v].tree \ chain[v - 1].tree) \cap gone \subseteq {3}

(* Witnesses *)
NeverAnew      == \A v \in 2..Newest : ~(chain[v].by \in Devices /\ Skips(v) = {} /\ (chain[v].tree \ chain[v - 1].tree) \cap Released # {})
NeverTwoPlans  == \A a, b \in Admins : a = b \/ plan[a] = None \/ plan[b] = None
NeverOvertaken == \A a \in Admins : ~(plan[a] # None /\ plan[a].newest < Newest /\ Skips(Newest) # {})
NeverTwice     == \A v \in 2..Newest : Cardinality({s \in chain[v].skips : s.signed}) < 2
NeverReadAgain == ~(Skips(Newest) # {} /\ 3 \notin gone /\ \E v \in 1..Newest : 3 \in chain[v].tree)
NeverOnlyHere  == ~(Skips(Newest) # {} /\ Top.tree \cap gone # {})
NeverForgotten == \A f \in Devices : \/ f \in Top.index \cup gone \/ \E e \in Devices : f \in work[e]
                                     \/ \A v \in 1..Newest : f \notin chain[v].tree
=============================================================================
