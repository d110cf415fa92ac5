-------------------------------- MODULE Jumps ---------------------------------
(* A device that slept jumps over many versions, beside one that made up a    *)
(* chain (consensus.md, rule 1.8).  Stands for leaps.py: `jump',              *)
(* `_borne_out_to', `_replayed'.                                              *)
(*                                                                            *)
(* The versions up to `newest' are decided, on the chain "h".  The liar's     *)
(* chain "m" parts from it at the version `part', which is decided otherwise, *)
(* so that the logs of that version have at most the votes of those acceptors *)
(* for it that had none.  In all later versions it writes as many votes as it *)
(* likes: they stand on states of its own, and honest devices take them for   *)
(* VOID.  It may admit a newcomer on its chain, who knows no better.          *)
(*                                                                            *)
(* A head says which state a device has synchronised.  Who knows a state      *)
(* knows all before it.                                                       *)
(*                                                                            *)
(* Abstracted: rounds, births, epochs, what excuses a version that nobody can *)
(* finish (rule 1.8, point 3), and that the logs of a version are read on a   *)
(* quorum: they are read on all.                                              *)
EXTENDS Integers, FiniteSets
CONSTANTS Acceptors, Quorum, VersionMax,
          Honest, Liars,     \* devices
          Newcomer,          \* one that the liar's chain may admit, and no other
          Mutants
VARIABLES votes,             \* votes[v]: <<a, c>> where the log of v on a shows a vote for the state of chain c
          newest, part, made,   \* `part' and `made': the first and the last version of the liar's chain; 0 without one
          heads,             \* heads[d]: the chain and version that d says it knows
          admitted,          \* whether the liar's chain admits the newcomer
          known              \* of the device that slept
vars == <<votes, newest, part, made, heads, admitted, known>>

Broken(rule) == rule \in Mutants
Devices == Honest \cup Liars
Max(S)  == CHOOSE x \in S : \A y \in S : y <= x
St(c, v) == IF c = "m" /\ part # 0 /\ v >= part THEN "m" ELSE "h"      \* which state chain c has as version v

Init == /\ votes = [v \in 1..VersionMax |-> {}]
        /\ newest = 0 /\ part = 0 /\ made = 0 /\ admitted = FALSE
        /\ heads = [d \in Devices \cup {Newcomer} |-> <<"h", 0>>]
        /\ known = <<"h", 0>>

(* --- what is agreed: the liar, too, may have versions agreed as others do --- *)
Decide(d) == \E S \in SUBSET Acceptors :
  /\ newest < VersionMax /\ Cardinality(S) = Quorum
  /\ votes' = [votes EXCEPT ![newest + 1] = @ \cup {<<a, "h">> : a \in S}]
  /\ newest' = newest + 1
  /\ heads' = IF heads[d][1] = "h" THEN [heads EXCEPT ![d] = <<"h", newest + 1>>] ELSE heads
  /\ UNCHANGED <<part, made, admitted, known>>

(* --- the liar ---                                                           *)
Part(d) == \E p \in 1..newest :
  /\ part = 0 /\ part' = p /\ made' = p
  /\ votes' = [votes EXCEPT ![p] = @ \cup {<<a, "m">> : a \in {b \in Acceptors : <<b, "h">> \notin votes[p]}}]
  /\ heads' = [heads EXCEPT ![d] = <<"m", p>>]
  /\ UNCHANGED <<newest, admitted, known>>
Extend(d) ==
  /\ part # 0 /\ made < VersionMax /\ made' = made + 1
  /\ votes' = [votes EXCEPT ![made + 1] = @ \cup {<<a, "m">> : a \in Acceptors}]
  /\ heads' = [heads EXCEPT ![d] = <<"m", made + 1>>]
  /\ UNCHANGED <<newest, part, admitted, known>>
Second(d) ==                                    \* another liar says the same
  /\ part # 0 /\ heads[d] # <<"m", made>> /\ heads' = [heads EXCEPT ![d] = <<"m", made>>]
  /\ UNCHANGED <<votes, newest, part, made, admitted, known>>
Admit ==
  /\ part # 0 /\ heads[Newcomer] # <<"m", made>>
  /\ admitted' = TRUE /\ heads' = [heads EXCEPT ![Newcomer] = <<"m", made>>]
  /\ UNCHANGED <<votes, newest, part, made, known>>

(* --- the device that slept ---                                              *)
Counting == Devices \cup (IF admitted /\ Broken("jump-admitted-later") THEN {Newcomer} ELSE {})
Vouch(c, v) == {d \in Counting : heads[d][2] >= v /\ St(heads[d][1], v) = St(c, v)}
Enough == IF Broken("jump-one-voucher") THEN 1 ELSE 2
Borne(c, v) == Cardinality({a \in Acceptors : <<a, St(c, v)>> \in votes[v]}) >= Quorum
(* How far it goes towards version t of chain c: to what two devices vouch    *)
(* for, and from there as far as the logs of each version bear it out.        *)
Reached(c, t) ==
  LET low  == Max({known[2]} \cup {v \in known[2]..t : v > 0 /\ Cardinality(Vouch(c, v)) >= Enough})
      read == IF Broken("jump-ends-only") THEN {t} \cap (low + 1)..t ELSE (low + 1)..t
  IN IF Broken("jump-by-chain") THEN t
     ELSE IF Broken("jump-vouched-only") THEN low
     ELSE Max({low} \cup {v \in (low + 1)..t : \A w \in read : w <= v => Borne(c, w)})
Jump == \E c \in {"h", "m"} : \E t \in (known[2] + 1)..VersionMax :
  /\ t <= (IF c = "h" THEN newest ELSE made)
  /\ St(c, known[2]) = known[1] \/ Broken("jump-no-way-back")             \* the chain leads back to what it knows
  /\ known' = <<St(c, Reached(c, t)), Reached(c, t)>>
  /\ UNCHANGED <<votes, newest, part, made, heads, admitted>>

Next == \/ \E d \in Devices : Decide(d)
        \/ \E d \in Liars : Part(d) \/ Extend(d) \/ Second(d)
        \/ Admit \/ Jump
----------------------------------------------------------------------------
(* Nobody is led onto the liar's chain.                                       *)
Apart == known[1] = "h" /\ known[2] <= newest
(* It comes to the newest version by the votes, whoever vouches.              *)
Arrives == Reached("h", newest) >= newest \/ known[2] > newest

(* Witnesses *)
NeverByDevices == \A v \in 1..newest : Cardinality(Vouch("h", v)) < 2 \/ part = 0 \/ known[2] < v
NeverByLogs    == ~(\E v \in 1..newest : Cardinality(Vouch("h", v)) < 2 /\ part # 0 /\ part < v /\ known = <<"h", v>>)
NeverAstray    == Apart
NeverStopped   == ~(part > 1 /\ made > part /\ known[2] = 0 /\ Reached("m", made) = part - 1)
=============================================================================
