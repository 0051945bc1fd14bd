//! The published bugs, in the order of the documentation's table. Each scheme has a line for each
//! of them: its own, or the one that all schemes share.

// Order and durability of a single operation.
pub(crate) const TOKEN_FIRST: &str =
    "Level hashing: slot token set before the pair is durable (W7-16)";
pub(crate) const WRONG_EDGE: &str =
    "FAST&FAIR: delete's shift flushes the wrong edge of a line (W3)";
pub(crate) const WRONG_CHAIN: &str = "P-CLHT: flush walks the wrong chain pointer (W30)";
pub(crate) const UNFENCED_NODE: &str =
    "P-HOT: no fence between flushing a node and publishing its pointer (W36-37)";
pub(crate) const TWO_STORES: &str =
    "P-ART, WOART: child and count are two stores, not atomic (W2, W26-27)";
pub(crate) const TORN: &str =
    "Torn fields: multi-byte stores the compiler may split (Yashme; RECIPE PR 20)";
pub(crate) const POOL_UNFLUSHED: &str =
    "Constructors and pool creation never flushed (J; Witcher issue 1)";
pub(crate) const INDEX_UNFLUSHED: &str = "Constructors of an index never flushed (J)";
pub(crate) const POOL_NOT_ATOMIC: &str = "Pool creation not atomic (Witcher issue 1)";
pub(crate) const ROOT_NOT_ATOMIC: &str = "Root creation not atomic (Witcher issue 1)";

// Two-step changes.
pub(crate) const CLEAR_THEN_SET: &str =
    "Level hashing: update as clear-old then set-new loses the key (W22-23)";
pub(crate) const SET_THEN_CLEAR: &str =
    "Level hashing: movement as set-new then clear-old leaves the key twice (W19-21)";
pub(crate) const TWICE_AFTER_MOVE: &str =
    "Dash: a key in home and neighbour bucket after a crash in displacement";
pub(crate) const HALF_RESIZE_REDONE: &str = "Dash: redoing half a split needs a uniqueness check";
pub(crate) const REMOVED_STAYS: &str =
    "FAST&FAIR: delete after a crashed insert returns success and the key stays (W4)";

// Resize.
pub(crate) const SEPARATE_WORDS: &str =
    "Level hashing: capacity, level count and pointers as separate stores (W17-18)";
pub(crate) const DEPTH_FIRST: &str = "CCEH: local depth durable before the directory doubled; pattern changed before the new segment is reachable (W24)";
pub(crate) const NEW_TABLE_UNFLUSHED: &str = "CCEH: the new directory never flushed (W24, J)";
pub(crate) const RANGE_OFF_BY_ONE: &str = "CCEH: range-update order and an off-by-one in depth";
pub(crate) const RESIZE_BEFORE_DURABLE: &str =
    "CCEH: doubling visible before durable, so another thread's insert is lost (SEPH issue 2)";
pub(crate) const ONE_HASH: &str =
    "CCEH: 65 keys with one hash split without end and crash (CCEH issue 11)";
pub(crate) const RESIZED_MEANWHILE: &str =
    "Dash: a split updates a directory that was doubled meanwhile";
pub(crate) const SERVED_UNREPAIRED: &str =
    "Dash: a segment served before its partner's directory entries are repaired";
pub(crate) const UNDURABLE_SIBLING: &str =
    "FAST&FAIR: insert through a sibling pointer that is not yet durable (W5-6, R)";
pub(crate) const UNDURABLE_ROOT: &str =
    "P-CLHT: insert through a new root that is not yet durable (R)";
pub(crate) const TABLE_LEAKED: &str = "P-CLHT: old or new table leaked around the swap (R)";

// Reads and decisions that depend on what is not yet durable.
pub(crate) const READ_UNDURABLE: &str = "CCEH, P-CLHT, APEX: a get returns a value that the crash takes back (SEPH issue 3, RECIPE issue 13, APEX issue 7, D)";
pub(crate) const EXISTS_UNDURABLE: &str =
    "Level hashing: the duplicate check sees a token that is not durable (SEPH issue 1)";
pub(crate) const CAPACITY_UNDURABLE: &str =
    "CCEH: allocation decided on an unpersisted capacity (R)";

// Locks, leaks, reclamation.
pub(crate) const LOCKS_IN_PM: &str = "CCEH, P-CLHT: locks kept in PM survive the crash held (R)";
pub(crate) const MICRO_LOG: &str = "FPTree ports without the micro-log leak or corrupt on split";
pub(crate) const FREED_TWICE: &str = "P-CLHT: garbage collection frees twice (RECIPE issue 24)";
pub(crate) const ERASE_DEADLOCKS: &str = "cmap: erase deadlocks";
pub(crate) const VALUE_SIZE: &str = "cmap: value size not checked on reopen";
pub(crate) const READ_FREED: &str =
    "CCEH, clevel's comparison: a search reads what another thread has freed";

// Tests that could not see the bug.
pub(crate) const WRONG_COMPARISON: &str =
    "FAST&FAIR issue 10: a search that compared the wrong thing was never noticed";
pub(crate) const FEW_INTERLEAVINGS: &str =
    "Few interleavings: a reader inside the window is rare under real threads";
pub(crate) const NOT_LINEARIZABLE: &str =
    "Level hashing as published is not linearizable even without a crash";

// Seen on this kind of machine.
pub(crate) const INSERTS_NEVER_END: &str = "Dash-LH, CCEH: inserts by two threads never end";
pub(crate) const REOPEN_HANGS: &str = "IcebergHT: reopen after a kill hangs";
pub(crate) const REMOVED_FOUND: &str =
    "Viper: removals return success and removed keys are still found";
pub(crate) const DRAM_POINTER: &str =
    "FAST&FAIR, P-CLHT: a fault on reopen, from a DRAM pointer kept in PM";
pub(crate) const EQUAL_VALUES: &str =
    "FAST&FAIR: equal values in neighbouring pairs make a removal return \"not found\"";
pub(crate) const REHASH_NOT_RESUMED: &str =
    "clevel: nothing restarts the rehashing thread on reopen";
pub(crate) const STALLS: &str = "Stalls of a single insert";
pub(crate) const OTHER_MAKERS: &str =
    "PMDK's fork refuses clwb on other makers' processors, silently";

/// All of them.
pub(crate) const ALL: &[&str] = &[
    TOKEN_FIRST,
    WRONG_EDGE,
    WRONG_CHAIN,
    UNFENCED_NODE,
    TWO_STORES,
    TORN,
    POOL_UNFLUSHED,
    INDEX_UNFLUSHED,
    POOL_NOT_ATOMIC,
    ROOT_NOT_ATOMIC,
    CLEAR_THEN_SET,
    SET_THEN_CLEAR,
    TWICE_AFTER_MOVE,
    HALF_RESIZE_REDONE,
    REMOVED_STAYS,
    SEPARATE_WORDS,
    DEPTH_FIRST,
    NEW_TABLE_UNFLUSHED,
    RANGE_OFF_BY_ONE,
    RESIZE_BEFORE_DURABLE,
    ONE_HASH,
    RESIZED_MEANWHILE,
    SERVED_UNREPAIRED,
    UNDURABLE_SIBLING,
    UNDURABLE_ROOT,
    TABLE_LEAKED,
    READ_UNDURABLE,
    EXISTS_UNDURABLE,
    CAPACITY_UNDURABLE,
    LOCKS_IN_PM,
    MICRO_LOG,
    FREED_TWICE,
    ERASE_DEADLOCKS,
    VALUE_SIZE,
    READ_FREED,
    WRONG_COMPARISON,
    FEW_INTERLEAVINGS,
    NOT_LINEARIZABLE,
    INSERTS_NEVER_END,
    REOPEN_HANGS,
    REMOVED_FOUND,
    DRAM_POINTER,
    EQUAL_VALUES,
    REHASH_NOT_RESUMED,
    STALLS,
    OTHER_MAKERS,
];
