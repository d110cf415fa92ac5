-------------------------------- MODULE Liars --------------------------------
(* One version where one acceptor lies and one device is a thief's: n = 4,    *)
(* f = 1, quorum 3.  Stands for replay.py (VOID, DECIDED) and for the quorum  *)
(* rule of instance.py in bft mode.                                           *)
(*                                                                            *)
(* The honest acceptors have real logs here, entry by entry, because VOID     *)
(* entries keep their places.  The liar says yes to every PREPARE and ACCEPT, *)
(* stores nothing, or shows what suits it: any genuine entry as evidence, cut *)
(* off anywhere, to each reader another selection.  It cannot sign.  So two   *)
(* honest answers and the liar's are a quorum.                                *)
(*                                                                            *)
(* Device 1 owns round 0 and may also prepare round 11; device 3 prepares     *)
(* round 33.  Device 2 is stolen: it signs any entry for value 2.  `Thief':   *)
(*   "out"     the base does not admit it: its entries are VOID for everybody *)
(*   "fenced"  the base admits it, the value of this version revokes it: it   *)
(*             was honest until DECIDED stood on a quorum, when the           *)
(*             revocation counts as complete                                  *)
(*                                                                            *)
(* Abstracted: POISON (an honest acceptor that holds it counts as one that    *)
(* is down), births, and what a PREPARE's sender had read: a PREPARE of a     *)
(* round may land any time, once on each log.                                 *)
EXTENDS Integers, Sequences, FiniteSets, TLC
CONSTANTS Honest,       \* acceptors that keep what they are given
          Liars,        \* how many lie
          Quorum,
          OwnerPrepares,\* TRUE: device 1 prepares a round, too
          Thief, ThiefRounds,
          ThiefCloses,  \* TRUE: the thief writes DECIDED, too
          Mutants
VARIABLES log, asked, knows
vars == <<log, asked, knows>>

Broken(rule) == rule \in Mutants
Readers == {1, 3}
Needed  == (IF Broken("liar-small-quorum") THEN Quorum - 1 ELSE Quorum) - Liars       \* honest answers that make a quorum
Max(S)  == CHOOSE x \in S : \A y \in S : y <= x

(* Whom a reader takes for admitted.  Reader 3 knows a newer device set, in   *)
(* which device 2 is revoked; reader 1 does not.                              *)
Admitted(c) ==
  IF Thief = "out"
  THEN IF Broken("void-counts") \/ (Broken("void-newest") /\ c = 1) THEN {1, 2, 3} ELSE {1, 3}
  ELSE {1, 2, 3}

(* Replay of the first k entries, as reader c sees them.                      *)
RECURSIVE Replay(_, _, _)
Replay(l, k, c) ==
  IF k = 0 THEN [promised |-> -1, round |-> -1, value |-> 0, closed |-> 0]
  ELSE LET s == Replay(l, k - 1, c)
           e == l[k]
       IN IF e.by \notin Admitted(c) \/ s.closed # 0 THEN s                            \* VOID, or after DECIDED
          ELSE IF e.kind = "DECIDED" THEN [s EXCEPT !.closed = e.x]
          ELSE IF e.kind = "PREPARE" THEN IF e.r > s.promised THEN [s EXCEPT !.promised = e.r] ELSE s
          ELSE IF e.r >= s.promised THEN [s EXCEPT !.promised = e.r, !.round = e.r, !.value = e.x] ELSE s
Effective(l, k, c) ==
  LET s == Replay(l, k - 1, c)
      e == l[k]
  IN /\ e.by \in Admitted(c) /\ s.closed = 0
     /\ IF e.kind = "PREPARE" THEN e.r > s.promised ELSE e.r >= s.promised

Init == log = [b \in Honest |-> <<>>] /\ asked = {} /\ knows = [c \in Readers |-> 0]
Holds(b, e)  == \E k \in 1..Len(log[b]) : log[b][k] = e
(* (Behind a DECIDED nothing has effect: it need not be appended.)             *)
Append_(b, e) == ~Holds(b, e) /\ (\A k \in 1..Len(log[b]) : log[b][k].kind # "DECIDED") /\ log' = [log EXCEPT ![b] = Append(@, e)]
Entry(kind, by, r, x) == [kind |-> kind, by |-> by, r |-> r, x |-> x]

Rounds == {<<3, 33>>} \cup (IF OwnerPrepares THEN {<<1, 11>>} ELSE {})
OwnRound == /\ \A q \in asked : q.r # 0 \/ q.by # 1
            /\ asked' = asked \cup {[by |-> 1, r |-> 0, x |-> 1]}
            /\ UNCHANGED <<log, knows>>
Prepare(b) == \E p \in Rounds : Append_(b, Entry("PREPARE", p[1], p[2], 0)) /\ UNCHANGED <<asked, knows>>
Accept(b)  == \E q \in asked : Append_(b, Entry("ACCEPT", q.by, q.r, q.x)) /\ UNCHANGED <<asked, knows>>
Promised(d, r) == {b \in Honest : \E k \in 1..Len(log[b]) : log[b][k] = Entry("PREPARE", d, r, 0) /\ Effective(log[b], k, d)}
Before(b, d, r) == Replay(log[b], (CHOOSE k \in 1..Len(log[b]) : log[b][k] = Entry("PREPARE", d, r, 0)) - 1, d)
(* What the liar shows: a genuine ACCEPT of a lower round, from an admitted   *)
(* signer.                                                                    *)
Shown(d, r, top) ==
  {q \in asked : q.r < r /\ q.r > top /\ (q.by \in Admitted(d) \/ Broken("void-evidence"))}
  \cup (IF Broken("liar-forges") THEN {[by |-> 1, r |-> k, x |-> 9] : k \in {j \in {0, 5} : j < r /\ j > top}} ELSE {})
Propose == \E p \in Rounds :
  LET d == p[1]
      r == p[2]
  IN /\ \A q \in asked : q.by # d \/ q.r # r
     /\ \E S \in SUBSET Promised(d, r) :
          /\ Cardinality(S) >= Needed
          /\ LET E   == {b \in S : Before(b, d, r).value # 0}
                 top == Max({-1} \cup {Before(b, d, r).round : b \in E})
                 own == IF E = {} THEN {d} ELSE {Before(b, d, r).value : b \in {a \in E : Before(a, d, r).round = top}}
             IN \E x \in own \cup (IF Liars > 0 THEN {q.x : q \in Shown(d, r, top)} ELSE {}) :
                  asked' = asked \cup {[by |-> d, r |-> r, x |-> x]}
     /\ UNCHANGED <<log, knows>>

Voters(c, r, x) == {b \in Honest : \E k \in 1..Len(log[b]) :
                      /\ log[b][k].kind = "ACCEPT" /\ log[b][k].r = r /\ log[b][k].x = x /\ Effective(log[b], k, c)}
Decides(c) == {q.x : q \in {p \in asked : Cardinality(Voters(c, p.r, p.x)) >= Needed}}
(* A reader counts votes, or takes DECIDED from as many logs as a vote needs. *)
(* It is device 1 that does so, and writes DECIDED; device 3 only counts.     *)
Closed(c, x) == {b \in Honest : Replay(log[b], Len(log[b]), c).closed = x}
Believes(c) == Decides(c) \cup {x \in 1..3 : Cardinality(Closed(c, x)) >= (IF Broken("lone-decided") THEN 1 ELSE Needed)}
Learn == LET c == 1 IN
            /\ Thief = "fenced" /\ knows[c] = 0
            /\ \E x \in Believes(c) : knows' = [knows EXCEPT ![c] = x]
            /\ UNCHANGED <<log, asked>>
Decided(b) == \E c \in Readers : /\ Thief = "fenced" /\ knows[c] # 0
                                 /\ \A k \in 1..Len(log[b]) : log[b][k].kind # "DECIDED" \/ log[b][k].by # c
                                 /\ Append_(b, Entry("DECIDED", c, 0, knows[c]))
                                 /\ UNCHANGED <<asked, knows>>
Fenced == Cardinality({b \in Honest : \E k \in 1..Len(log[b]) : log[b][k].kind = "DECIDED" /\ log[b][k].by # 2}) >= Needed
Steals == Thief = "out" \/ Fenced \/ Broken("revoke-unfenced")
Forge == \E r \in ThiefRounds : /\ Steals /\ [by |-> 2, r |-> r, x |-> 2] \notin asked
                                /\ asked' = asked \cup {[by |-> 2, r |-> r, x |-> 2]}
                                /\ UNCHANGED <<log, knows>>
ForgeDecided(b) == /\ ThiefCloses /\ Steals /\ Append_(b, Entry("DECIDED", 2, 0, 2)) /\ UNCHANGED <<asked, knows>>

Next == \/ OwnRound \/ Propose \/ Forge \/ Learn
        \/ \E b \in Honest : Prepare(b) \/ Accept(b) \/ Decided(b) \/ ForgeDecided(b)
----------------------------------------------------------------------------
AllDecided == UNION {Believes(c) : c \in Readers} \cup ({knows[c] : c \in Readers} \ {0})
Agreement  == Cardinality(AllDecided) <= 1
NotStolen  == 2 \notin AllDecided
(* "No quorum holds an entry" is never said of a decided version: a quorum of *)
(* empty logs, the liar's among them, does not go with a decision.            *)
Recent     == AllDecided # {} => Cardinality({b \in Honest : log[b] = <<>>}) < Needed

(* Witnesses *)
NeverVoidBefore == ~(1 \in Decides(1) /\ \E b \in Honest : Len(log[b]) > 1 /\ log[b][1].by = 2)
NeverLiarNeeded == \A q \in asked : Cardinality(Voters(1, q.r, q.x)) # Quorum - Liars
NeverShown      == \A q \in asked : q.r > 0 /\ q.by # 2 => \/ q.x = q.by
                                                          \/ \E b \in Honest : Holds(b, Entry("ACCEPT", q.x, 0, q.x))
NeverForgedShut == \A b \in Honest : Replay(log[b], Len(log[b]), 1).closed # 2
Symmetry == Permutations(Honest)
=============================================================================
