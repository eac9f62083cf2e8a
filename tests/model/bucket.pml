/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save of many ranks in an object store, where folders cannot be renamed: what decides is one key that can be put only
 * once, with the manifest or with what calls the save off (src/ranks/abort_commit.h). Attempt A (rank 0 and two others), and attempt
 * B, whose rank 0 takes the run over at any moment. As in save.pml what stands in one STEP, TEST or d_step is one request,
 * a process may be slow between two of them for as long as it likes, and may crash (CRASHES times in all). check.py checks
 * it, with each of the mistakes (-DBAD_...), which must be found, and asks what can happen at all (-DREACH=...).
 *
 * Where the promises are checked:
 *   P2, P7   WHOLE: a folder with a manifest has all packs of the save that it names, whenever either changes
 *   P6       retain: what goes is never the newest one that is listed
 *   P10      commit: an id is committed once, ever, and nothing of A's once B has listed what there is; and what A calls off
 *            is never in B's way
 *   P11      say: no two ranks say different things, what they say is so; all say something (end states, no cycles)
 */
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef SAVES_A
#define SAVES_A 2
#endif
#ifndef SAVES_B
#define SAVES_B 1
#endif

#define A 0
#define B 1
#define NOBODY 2

#define OK 1
#define FAILED 2
#define LOST 3

/* Whose packs lie in a folder: of A's ranks, of B (all at once), and those of the checkpoint that was there before. */
#define PACK(rank) (1 << (rank))
#define ALL_A 7
#define ALL_B 8
#define ALL_EARLIER 16

/* What a manifest's key holds. */
#define NOTHING 0
#define CALLED_OFF 1
#define OF_EARLIER 2
#define OF_A 3
#define OF_B 4

/* Checkpoint 1 is there from the start, 5 is the highest id that can come. */
byte key[6];
byte packs[6];
byte parts[2];   /* of A's saves: which ranks have put theirs */
byte verdict[2];
byte lease = A;

/* Known to the checks only. */
byte crashes;
byte committed; /* ids, a bit each */
byte a_done;    /* A's saves that were committed, a bit each */
byte said[2];   /* of A's saves: bit 0 a rank said ok, 1 a rank said failed, 2.. which ranks have ended it */
bool b_has_listed;
bool lied;      /* a put was done and its answer lost */

#define WHOLE(i) (key[i] <= CALLED_OFF || (key[i] == OF_A && (packs[i] & ALL_A) == ALL_A) || \
	(key[i] == OF_B && (packs[i] & ALL_B)) || (key[i] == OF_EARLIER && (packs[i] & ALL_EARLIER)))

#define CRASH d_step { crashes < CRASHES -> crashes++; FORGET } -> goto gone
#define STEP(what) if :: d_step { what } :: CRASH fi
#define TEST(what, if_not) if :: d_step { (what) -> skip } :: d_step { !(what) -> skip } -> goto if_not :: CRASH fi

#ifdef REACH
#define REACHED(what) assert(REACH != what)
#else
#define REACHED(what) skip
#endif
#define A_COMMITS_TWICE 1
#define RANK_CALLS_OFF 2
#define RANK_COMES_TOO_LATE 3
#define B_COMMITS_AFTER_A 4
#define LATE_PUT_LOSES 5
#define OLD_ONE_REMOVED 6
#define VERDICT_LOST 7
#define PUT_WHERE_ONE_WAS 8

#define MY_ID (save + 2)

inline say(what, rank)
{
	said[save] = said[save] | (4 << rank);
	if
	:: what == OK -> said[save] = said[save] | 1; assert(committed & (1 << MY_ID))
	:: what == FAILED -> said[save] = said[save] | 2; assert(!(a_done & (1 << save)))
	:: else -> REACHED(VERDICT_LOST)
	fi;
	assert((said[save] & 3) != 3)
}

#ifdef BAD_PUT_REPLACES
#define CAN_PUT(id) (1)
#else
#define CAN_PUT(id) (key[id] == NOTHING)
#endif

inline commit(attempt, id)
{
	assert(!(committed & (1 << id)));
	assert(attempt == B || !b_has_listed);
	assert(attempt == B || !(said[id - 2] & 2));
	committed = committed | (1 << id);
	if
	:: attempt == A -> key[id] = OF_A; a_done = a_done | (1 << (id - 2));
		if :: a_done == 3 -> REACHED(A_COMMITS_TWICE) :: else fi
	:: attempt == B -> key[id] = OF_B;
		if :: a_done -> REACHED(B_COMMITS_AFTER_A) :: else fi
	fi;
	assert(WHOLE(id))
}

#define FORGET save = 0; old = 0

/* Rank 0 keeps the newest only: one older checkpoint goes, its manifest first. */
inline retain(attempt, below)
{
	STEP(
		if :: lease == attempt && 1 < below && key[1] > CALLED_OFF -> old = 1 :: else fi;
		if :: lease == attempt && 2 < below && key[2] > CALLED_OFF -> old = 2 :: else fi;
		if :: lease == attempt && 3 < below && key[3] > CALLED_OFF -> old = 3 :: else fi);
	if
	:: old ->
#ifdef BAD_PACKS_GO_FIRST
		STEP(packs[old] = 0; assert(WHOLE(old)));
#endif
		STEP(
			newest = 1;
			if :: key[2] > CALLED_OFF -> newest = 2 :: else fi;
			if :: key[3] > CALLED_OFF -> newest = 3 :: else fi;
			if :: key[4] > CALLED_OFF -> newest = 4 :: else fi;
			if :: key[5] > CALLED_OFF -> newest = 5 :: else fi;
			assert(key[old] <= CALLED_OFF || newest != old);
			if :: key[old] > CALLED_OFF -> key[old] = NOTHING :: else fi;
			newest = 0;
			REACHED(OLD_ONE_REMOVED));
		STEP(packs[old] = 0; assert(WHOLE(old)); old = 0)
	:: else
	fi
}

#undef FORGET
#define FORGET save = 0

/* A rank that cannot tell how its save ends: looks for the lease, calls it off, looks for the lease again. */
inline settle(rank)
{
#ifndef BAD_CALLS_OFF_WHATEVER_THE_LEASE
	if
	:: d_step { lease == A -> skip }
	:: d_step { lease != A -> skip } -> goto look
	:: CRASH
	fi;
#endif
	if
	:: d_step { key[MY_ID] == NOTHING -> key[MY_ID] = CALLED_OFF; REACHED(RANK_CALLS_OFF);
		if :: a_done & (1 << save) -> REACHED(PUT_WHERE_ONE_WAS) :: else fi } -> goto last
	:: d_step { key[MY_ID] != NOTHING -> skip }
	:: CRASH
	fi;
look:
	if
#ifdef BAD_LOOKS_AT_THE_NAME_ONLY
	:: d_step { key[MY_ID] > CALLED_OFF -> say(OK, rank); save++ } -> goto next
	:: d_step { key[MY_ID] <= CALLED_OFF -> skip }
#else
	:: d_step { key[MY_ID] == OF_A -> REACHED(RANK_COMES_TOO_LATE); say(OK, rank); save++ } -> goto next
	:: d_step { key[MY_ID] != OF_A -> skip }
#endif
	:: CRASH
	fi;
last:
#ifndef BAD_DOES_NOT_LOOK_AGAIN
	if
	:: d_step { lease == A -> skip }
	:: d_step { lease != A ->
#ifdef BAD_CLEARS_UP_IN_DOUBT
		packs[MY_ID] = packs[MY_ID] & ~PACK(rank); assert(WHOLE(MY_ID));
#endif
		say(LOST, rank); save++ } -> goto next
	:: CRASH
	fi
#else
	skip
#endif
}

#ifdef BAD_REMOVES_THE_FOLDER
#define CLEAR_UP(rank) packs[MY_ID] = 0; key[MY_ID] = NOTHING
#else
#define CLEAR_UP(rank) packs[MY_ID] = packs[MY_ID] & ~PACK(rank)
#endif

#undef FORGET
#define FORGET save = 0; old = 0

/* Attempt A, rank 0. */
proctype a0()
{
	byte save, old, newest;

next:
	if
	:: save == SAVES_A -> goto close
	:: else
	fi;
	STEP(packs[MY_ID] = packs[MY_ID] | PACK(0));
	if
#ifdef BAD_COMMITS_WITHOUT_ALL_PARTS
	:: d_step { true -> skip }
#else
	:: d_step { parts[save] == 6 -> skip }
#endif
	:: goto failed /* the deadline, a part that tells of an error, parts that disagree */
	:: CRASH
	fi;
	/* The two looks are made at the same time, so that either may come first. */
#ifdef FILES_FIRST
	TEST((packs[MY_ID] & ALL_A) == ALL_A, failed);
#endif
#ifndef BAD_LEASE_NOT_CHECKED
	TEST(lease == A, failed);
#endif
#if !defined(FILES_FIRST) && !defined(BAD_FILES_NOT_LOOKED_AT) && !defined(BAD_COMMITS_WITHOUT_ALL_PARTS) /* either finds it */
	TEST((packs[MY_ID] & ALL_A) == ALL_A, failed);
#endif
	if
	:: d_step { CAN_PUT(MY_ID) -> commit(A, MY_ID) }
	:: d_step { CAN_PUT(MY_ID) && !lied -> commit(A, MY_ID); lied = true } -> goto doubt
	:: d_step { !CAN_PUT(MY_ID) -> if :: lease == B -> REACHED(LATE_PUT_LOSES) :: else fi } -> goto doubt
	:: CRASH
	fi;
	STEP(verdict[save] = OK; say(OK, 0));
	retain(A, MY_ID);
	STEP(save++);
	goto next;
doubt:
#ifndef BAD_PUT_TAKEN_AT_ITS_WORD
	settle(0);
#endif
failed: /* the manifest was not put, and nobody else puts it */
	STEP(verdict[save] = FAILED; say(FAILED, 0));
	STEP(CLEAR_UP(0); assert(WHOLE(MY_ID)); save++);
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
#ifdef BAD_CALLS_OFF_WITHOUT_PACKS
	if
	:: d_step { true -> skip } -> goto give_up
	:: d_step { packs[MY_ID] = packs[MY_ID] | PACK(rank) }
	:: CRASH
	fi;
#else
	STEP(packs[MY_ID] = packs[MY_ID] | PACK(rank));
#endif
	STEP(parts[save] = parts[save] | PACK(rank));
	if
	:: d_step { verdict[save] == OK -> say(OK, rank); save++ } -> goto next
	:: d_step { verdict[save] == FAILED -> say(FAILED, rank) } -> goto clear
	:: goto give_up /* rank 0 is gone, or the deadline has passed */
	:: CRASH
	fi;
give_up:
#ifndef BAD_FAILS_WITHOUT_DECIDING
	settle(rank);
#endif
	STEP(say(FAILED, rank); verdict[save] = FAILED);
clear:
	STEP(CLEAR_UP(rank); assert(WHOLE(MY_ID)); save++);
	goto next;
gone:
	skip
}

#undef FORGET
#define FORGET save = 0; id = 0; old = 0; open2 = 0; open3 = 0

inline list()
{
	id = 1;
#ifdef BAD_IDS_OF_CHECKPOINTS_ONLY
	if :: key[2] > CALLED_OFF -> id = 2 :: else fi;
	if :: key[3] > CALLED_OFF -> id = 3 :: else fi;
#else
	if :: key[2] != NOTHING || packs[2] -> id = 2 :: else fi;
	if :: key[3] != NOTHING || packs[3] -> id = 3 :: else fi;
#endif
	b_has_listed = true
}

/* Attempt B, which takes the run over when the lease is free, stale or its holder dead: at any moment. */
proctype b0()
{
	byte save, id, old, newest;
	bool open2, open3;

	STEP(lease = B);
#ifdef BAD_LISTS_BEFORE_CALLING_OFF
	STEP(list());
#endif
#ifndef BAD_CALLS_NOTHING_OFF
	STEP(open2 = packs[2] && key[2] == NOTHING; open3 = packs[3] && key[3] == NOTHING);
	STEP(if :: open2 && key[2] == NOTHING -> key[2] = CALLED_OFF :: else fi; open2 = false);
	STEP(if :: open3 && key[3] == NOTHING -> key[3] = CALLED_OFF :: else fi; open3 = false);
#endif
#ifndef BAD_LISTS_BEFORE_CALLING_OFF
	STEP(list());
#endif
	/* gc: what is called off, or was never decided, leaves its packs behind. */
	STEP(if :: key[2] <= CALLED_OFF -> packs[2] = packs[2] & ~ALL_A :: else fi);
	STEP(if :: key[3] <= CALLED_OFF -> packs[3] = packs[3] & ~ALL_A :: else fi);
#ifdef BAD_WHAT_CALLS_OFF_GOES
	STEP(if :: key[2] == CALLED_OFF -> key[2] = NOTHING :: else fi);
#endif
next:
	if
	:: save == SAVES_B -> goto close
	:: else
	fi;
	STEP(id++; packs[id] = packs[id] | ALL_B);
	TEST(lease == B, ended);
	if
	:: d_step { key[id] == NOTHING -> commit(B, id) }
	:: d_step { key[id] != NOTHING -> assert(false) /* somebody is in its way */ }
	:: CRASH
	fi;
	retain(B, id);
ended:
	save++;
	goto next;
close:
	STEP(if :: lease == B -> lease = NOBODY :: else fi; save = 0; id = 0);
gone:
	skip
}

init
{
	d_step {
		key[1] = OF_EARLIER;
		packs[1] = ALL_EARLIER;
		committed = 2
	};
	atomic {
		run a0();
		run a_rank(1);
		run a_rank(2);
		run b0()
	}
}
