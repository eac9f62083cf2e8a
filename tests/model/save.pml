/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save of many ranks, as steps on a shared folder: attempt A (rank 0 and two others), and attempt B, whose rank 0
 * takes the run over at any moment. What stands in one STEP, TEST or d_step is one step of the store, or less than one.
 * Between two steps a process may be slow for as long as it likes, every deadline may pass at any moment, and processes
 * may crash (CRASHES times in all). check.py checks it, builds it with each of the mistakes (-DBAD_...), which must be
 * found, and asks whether what is interesting can happen at all (-DREACH=...). docs/explanation/multi-rank.md tells more.
 *
 * Where the promises are checked:
 *   P2, P7   WHOLE: a listed folder has the three files of one attempt, whenever it changes
 *   P6       hide: what goes is never the newest one that is listed
 *   P10      commit: an id is committed once, ever, and nothing once a later writer has listed what there is
 *   P11      say: no two ranks say different things, what they say is so; all say something (end states, no cycles)
 */
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef SAVES_A
#define SAVES_A 2
#endif
#ifndef SAVES_B
#define SAVES_B 2
#endif

/* A folder, or a set of parts, in one byte: per rank two bits (which attempt it is from), then these two. */
#define THERE 64
#define MANIFEST 128
#define FILES 63
#define FROM(attempt, rank) (((attempt) + 1) << (2 * (rank)))
#define ALL(attempt) (21 * ((attempt) + 1))
#define EARLIER 2 /* a third attempt, long over, which left checkpoint 1 */

#define A 0
#define B 1
#define NOBODY 2

#define OK 1
#define FAILED 2
#define LOST 3 /* taken over, and the checkpoint is not there (any more): nobody can tell, and so it is said */

#define TOKEN(attempt, save) (2 * (attempt) + (save) + 1)
#ifdef BAD_NAMES_WITHOUT_TOKEN
#define SLOT(attempt, save, id) ((id) - 2)
#define GATHERED(set, attempt) (((set) & 3) && ((set) & 12) && ((set) & 48))
#else
#define SLOT(attempt, save, id) (2 * (attempt) + (save))
#define GATHERED(set, attempt) ((set) == ALL(attempt))
#endif

/* The store. Checkpoint 1 is there from the start, 5 is the highest id that can come. */
byte partial[4];  /* the hidden folder of a save */
byte parts[4];    /* its part-* */
byte verdict[4];  /* its verdict.json */
byte listed[6];   /* checkpoint_<id>; 0 = none */
byte token_of[6]; /* and the save that its manifest names */
byte lease = A;

/* Known to the checks only. */
byte crashes;
byte committed; /* ids, a bit each */
byte done;      /* tokens of saves that were committed, a bit each */
byte said[2];   /* of A's saves: bit 0 a rank said ok, 1 a rank said failed, 2.. which ranks have ended it */
bool b_has_listed;
bool lied;      /* a rename was done and its answer lost */

#define WHOLE(i) (!(listed[i] & MANIFEST) || (listed[i] & FILES) == ALL(A) || (listed[i] & FILES) == ALL(B) || \
	(listed[i] & FILES) == ALL(EARLIER))

/* A step may be the last one that does not happen. FORGET makes all crashed processes look alike. */
#define CRASH d_step { crashes < CRASHES -> crashes++; FORGET } -> goto gone
#define STEP(what) if :: d_step { what } :: CRASH fi
#define TEST(what, if_not) if :: d_step { (what) -> skip } :: d_step { !(what) -> skip } -> goto if_not :: CRASH fi

#ifdef REACH
#define REACHED(what) assert(REACH != what)
#else
#define REACHED(what) skip
#endif
#define A_COMMITS_TWICE 1
#define WITHDRAWAL_WINS 2
#define WITHDRAWAL_LOSES 3
#define B_COMMITS_AFTER_A 4
#define B_USES_AN_ID_AGAIN 5
#define FOLDER_MADE_ANEW 6
#define OLD_ONE_REMOVED 7
#define VERDICT_LOST 8
#define GC_WINS 9

inline say(save, rank, what)
{
	said[save] = said[save] | (4 << rank);
	if
	:: what == OK -> said[save] = said[save] | 1; assert(done & (1 << TOKEN(A, save)))
	:: what == FAILED -> said[save] = said[save] | 2; assert(!(done & (1 << TOKEN(A, save))))
	:: else -> REACHED(VERDICT_LOST)
	fi;
	assert((said[save] & 3) != 3)
}

#ifdef BAD_RENAME_REPLACES
#define CAN_COMMIT(id, slot) (partial[slot] != 0)
#else
#define CAN_COMMIT(id, slot) (partial[slot] != 0 && listed[id] == 0)
#endif

/* The exclusive rename of the hidden folder to checkpoint_<id>, when it can be done. */
inline commit(attempt, save, id, slot)
{
	assert(!(committed & (1 << id)));
	assert(attempt == B || !b_has_listed);
	assert(attempt == B || !(said[save] & 2));
	committed = committed | (1 << id);
	done = done | (1 << TOKEN(attempt, save));
	listed[id] = partial[slot];
	token_of[id] = TOKEN(attempt, save);
	partial[slot] = 0;
	assert(WHOLE(id));
	if
	:: attempt == A && save == 1 && (done & (1 << TOKEN(A, 0))) -> REACHED(A_COMMITS_TWICE)
	:: attempt == B && (done & 6) -> REACHED(B_COMMITS_AFTER_A)
	:: attempt == B && id == 2 && (said[0] & 2) -> REACHED(B_USES_AN_ID_AGAIN)
	:: else
	fi
}

#define FORGET save = 0; seen = 0; old = 0

/* The name goes first; nobody looks at what is removed then. */
inline hide(id)
{
	newest = 1;
	if :: listed[2] & MANIFEST -> newest = 2 :: else fi;
	if :: listed[3] & MANIFEST -> newest = 3 :: else fi;
	if :: listed[4] & MANIFEST -> newest = 4 :: else fi;
	if :: listed[5] & MANIFEST -> newest = 5 :: else fi;
	assert(listed[id] == 0 || newest != id);
	listed[id] = 0;
	token_of[id] = 0;
	REACHED(OLD_ONE_REMOVED);
	newest = 0
}

/* Rank 0 keeps the newest only: one older checkpoint goes, if the lease is still its own. */
inline retain(attempt, below)
{
	STEP(
		if :: lease == attempt && 1 < below && listed[1] -> old = 1 :: else fi;
		if :: lease == attempt && 2 < below && listed[2] -> old = 2 :: else fi;
		if :: lease == attempt && 3 < below && listed[3] -> old = 3 :: else fi;
		if :: lease == attempt && 4 < below && listed[4] -> old = 4 :: else fi);
	if
	:: old ->
#ifdef BAD_REMOVES_BEFORE_HIDING
		STEP(listed[old] = listed[old] & ~3; assert(WHOLE(old)));
#endif
		STEP(hide(old); old = 0)
	:: else
	fi
}

/* Rank 0 has all parts: the lease, the manifest, the files, the rename. Goes to withdraw if it did not come to the
 * rename, to doubt if the rename was in vain. */
inline finish(attempt, save, id, slot)
{
#ifndef BAD_LEASE_NOT_CHECKED
	TEST(lease == attempt, withdraw);
#endif
#ifdef BAD_REMOVES_BEFORE_COMMIT
	retain(attempt, id);
#endif
	STEP(partial[slot] = partial[slot] | THERE | MANIFEST); /* a folder that is not there is made */
#ifndef BAD_FILES_NOT_LOOKED_AT
	if
	:: d_step { (partial[slot] & seen) == seen -> skip }
	:: d_step { (partial[slot] & seen) != seen ->
		if :: partial[slot] & FILES -> REACHED(FOLDER_MADE_ANEW) :: else fi } -> goto withdraw
	:: CRASH
	fi;
#endif
#ifdef BAD_VERDICT_BEFORE_RENAME
	STEP(verdict[slot] = OK);
#endif
	if
	:: d_step { CAN_COMMIT(id, slot) -> commit(attempt, save, id, slot) }
	:: d_step { CAN_COMMIT(id, slot) && attempt == A && !lied -> commit(attempt, save, id, slot); lied = true } ->
		goto doubt
	:: d_step { !CAN_COMMIT(id, slot) ->
		if
		:: attempt == A && lease == A -> REACHED(WITHDRAWAL_WINS)
		:: attempt == A && lease == B -> REACHED(GC_WINS)
		:: else
		fi } -> goto doubt
	:: CRASH
	fi
}

inline list()
{
	id = 0;
#ifndef BAD_IDS_NOT_FROM_THE_LIST
	if :: listed[1] & MANIFEST -> id = 1 :: else fi;
	if :: listed[2] & MANIFEST -> id = 2 :: else fi;
	if :: listed[3] & MANIFEST -> id = 3 :: else fi;
#endif
	b_has_listed = true
}

#define MY_ID (save + 2)
#define MY_SLOT SLOT(A, save, MY_ID)

/* Attempt A, rank 0. */
proctype a0()
{
	byte save, seen, old, newest;

next:
	if
	:: save == SAVES_A -> goto close
	:: else
	fi;
	STEP(partial[MY_SLOT] = partial[MY_SLOT] | THERE | FROM(A, 0));
	STEP(parts[MY_SLOT] = parts[MY_SLOT] | FROM(A, 0));
	if
#ifdef BAD_COMMITS_WITHOUT_ALL_PARTS
	:: d_step { seen = parts[MY_SLOT] }
#else
	:: d_step { GATHERED(parts[MY_SLOT], A) -> seen = parts[MY_SLOT] }
#endif
	:: goto withdraw /* the deadline, a part that tells of an error, parts that disagree */
	:: CRASH
	fi;
	if
	:: save == 1 -> /* all have left the first save: what late ones have made anew there goes */
		STEP(assert(said[0] >> 2 == 7); partial[0] = 0; parts[0] = 0; verdict[0] = 0)
	:: else
	fi;
	finish(A, save, MY_ID, MY_SLOT);
committed_it:
	STEP(verdict[MY_SLOT] = OK; say(save, 0, OK); seen = 0);
#ifndef BAD_REMOVES_BEFORE_COMMIT
	retain(A, MY_ID);
#endif
	save++;
	goto next;
doubt:
#ifndef BAD_RENAME_TAKEN_AT_ITS_WORD
	if
	:: d_step { token_of[MY_ID] == TOKEN(A, save) -> skip } -> goto committed_it
	:: d_step { token_of[MY_ID] != TOKEN(A, save) -> skip }
	:: CRASH
	fi;
#ifndef BAD_ABSENT_IS_FAILED
	if
	:: d_step { lease == A -> skip }
	:: d_step { lease != A -> say(save, 0, LOST); seen = 0; save++ } -> goto next
	:: CRASH
	fi;
#endif
#endif
withdraw:
#ifdef BAD_RANK_0_REMOVES
	STEP(partial[MY_SLOT] = partial[MY_SLOT] & ~3);
#endif
	STEP(partial[MY_SLOT] = 0);
	STEP(verdict[MY_SLOT] = FAILED; say(save, 0, FAILED); seen = 0; save++);
	goto next;
close:
	STEP(if :: lease == A -> lease = NOBODY :: else fi; save = 0);
gone:
	skip
}

#undef FORGET
#define FORGET save = 0

/* Attempt A, ranks 1 and 2. */
proctype a_rank(byte rank)
{
	byte save;

next:
	if
	:: save == SAVES_A -> goto gone
	:: else
	fi;
	STEP(partial[MY_SLOT] = (partial[MY_SLOT] & ~(3 << (2 * rank))) | THERE | FROM(A, rank));
	STEP(parts[MY_SLOT] = (parts[MY_SLOT] & ~(3 << (2 * rank))) | FROM(A, rank));
	if
	:: d_step { verdict[MY_SLOT] != 0 -> say(save, rank, verdict[MY_SLOT]); save++ }
	/* The deadline has passed, or rank 0 is gone: the one rename decides. */
#ifdef BAD_FAILS_WITHOUT_WITHDRAWING
	:: d_step { say(save, rank, FAILED); save++ }
#elif defined(BAD_WITHDRAWS_BY_REMOVING)
	:: d_step { partial[MY_SLOT] != 0 -> partial[MY_SLOT] = partial[MY_SLOT] & ~3 } ->
		STEP(partial[MY_SLOT] = 0; say(save, rank, FAILED); save++)
	:: d_step { partial[MY_SLOT] == 0 -> skip } -> goto look
#elif !defined(BAD_WAITS_FOR_EVER)
	:: d_step { partial[MY_SLOT] != 0 -> partial[MY_SLOT] = 0; say(save, rank, FAILED); save++ }
#ifdef BAD_DOES_NOT_LOOK
	:: d_step { partial[MY_SLOT] == 0 -> say(save, rank, FAILED); save++ }
#else
	:: d_step { partial[MY_SLOT] == 0 -> skip } -> goto look
#endif
#endif
	:: CRASH
	fi;
	goto next;
look:
	if
#ifdef BAD_LOOKS_AT_THE_NAME_ONLY
	:: d_step { listed[MY_ID] != 0 -> say(save, rank, OK); save++ } -> goto next
	:: d_step { listed[MY_ID] == 0 -> skip }
#else
	:: d_step { token_of[MY_ID] == TOKEN(A, save) ->
		say(save, rank, OK); save++; REACHED(WITHDRAWAL_LOSES) } -> goto next
	:: d_step { token_of[MY_ID] != TOKEN(A, save) -> skip }
#endif
	:: CRASH
	fi;
#ifdef BAD_ABSENT_IS_FAILED
	STEP(say(save, rank, FAILED); save++);
#else
	if
	:: d_step { lease == A -> say(save, rank, FAILED); save++ }
	:: d_step { lease != A -> say(save, rank, LOST); save++ }
	:: CRASH
	fi;
#endif
	goto next;
gone:
	skip
}

#undef FORGET
#undef MY_ID
#undef MY_SLOT
#define FORGET save = 0; seen = 0; old = 0; id = 0
#define MY_SLOT SLOT(B, save, id)

/* Attempt B, which takes the run over when the lease is free, stale or its holder dead: at any moment. Its other ranks
 * are told within it: they write and come, or never do. */
proctype b0()
{
	byte save, id, seen, old, newest;

	STEP(lease = B);
#ifdef BAD_LISTS_BEFORE_GC
	STEP(list());
#endif
	/* gc: hidden folders are renamed first, then removed. */
#ifdef BAD_GC_IN_PLACE
	/* Files go one after the other, wherever the folder has been renamed to. */
	if
	:: d_step { partial[0] != 0 -> partial[0] = partial[0] & ~3 }
	:: d_step { partial[0] == 0 -> skip }
	fi;
#endif
	STEP(partial[0] = 0);
	STEP(partial[1] = 0);
#ifndef BAD_LISTS_BEFORE_GC
	STEP(list());
#endif
	STEP(parts[0] = 0; verdict[0] = 0; parts[1] = 0; verdict[1] = 0);
next:
	if
	:: save == SAVES_B -> goto close
	:: else
	fi;
	STEP(id++; partial[MY_SLOT] = THERE | ALL(B));
	if
	:: d_step { parts[MY_SLOT] = ALL(B); seen = ALL(B) }
#ifdef BAD_NAMES_WITHOUT_TOKEN
	:: d_step { GATHERED(parts[MY_SLOT], B) -> seen = 0 }
#endif
	:: goto withdraw
	:: CRASH
	fi;
	finish(B, save, id, MY_SLOT);
#ifdef BAD_REMOVES_BEFORE_COMMIT
	STEP(verdict[MY_SLOT] = OK);
#else
	retain(B, id);
#endif
	goto ended;
doubt:
withdraw:
	STEP(partial[MY_SLOT] = 0);
ended:
	seen = 0;
	save++;
	goto next;
close:
	STEP(if :: lease == B -> lease = NOBODY :: else fi; save = 0; id = 0);
gone:
	skip
}

#ifdef BAD_RENEWAL_OVERWRITES
/* The thread that renews A's lease: looks whether it is A's, then puts it anew. */
#undef FORGET
#define FORGET skip
proctype renewer()
{
end:
	d_step { lease == A -> skip };
	STEP(lease = A);
gone:
	skip
}
#endif

init
{
	d_step {
		listed[1] = THERE | MANIFEST | ALL(EARLIER);
		token_of[1] = 5;
		committed = 2
	};
	atomic {
#ifdef BAD_RENEWAL_OVERWRITES
		run renewer();
#endif
		run a0();
		run a_rank(1);
		run a_rank(2);
		run b0()
	}
}
