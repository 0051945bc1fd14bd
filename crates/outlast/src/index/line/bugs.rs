//! Seeded bugs of line hashing.

crate::seeded_bugs! {
    /// A rebuild copies the segments immediately after it has frozen their cells.
    GRACE_SKIPPED = "RebuildGraceSkipped";
    /// A change that looks at its cell again ignores that the cell is frozen.
    FROZEN_IGNORED = "FrozenIgnored";
    /// A change does not look at the cell again after it has locked its stripe.
    CELL_NOT_RECHECKED = "CellNotRechecked";
    /// Lookups and iterations do not look at the cell again.
    CELL_UNCHECKED = "CellUnchecked";
    /// The old segments of a rebuild are freed before readers are led away from them.
    FREED_BEFORE_SWITCH = "FreedBeforeSwitch";
    /// A rebuild's intent is stored after its cells.
    INTENT_LATE = "IntentLate";
    /// A rebuild's first new segment does not name the second.
    SIBLING_MISSING = "SiblingMissing";
    /// A rebuild leaves out the last of its cells.
    CELLS_ONE_SHORT = "CellsOneShort";
    /// Recovery stores the cells of the first new segment only.
    SETTLE_ONE_SEGMENT = "SettleOneSegment";
    /// First touch flushes the home lines only.
    FOUND_STASH_UNFLUSHED = "FoundStashUnflushed";
    /// A record in a node gets no flag.
    BEYOND_NOT_SET = "BeyondNotSet";
    /// The hints that a removal computes anew lack the flags of records in nodes.
    BEYOND_CLEARED = "BeyondCleared";
    /// The hints that a removal computes anew lack the records in the stash.
    REHINT_BLOCK_ONLY = "RehintBlockOnly";
    /// A rebuild leaves out the records beyond the first new node.
    NODES_NOT_CARRIED = "NodesNotCarried";
    /// A rebuild does not mark the old segments and nodes for the trace.
    OLD_UNMARKED = "OldUnmarked";
    /// A rebuild leads readers to the new segments before its intent is durable.
    SHOWN_BEFORE_CELLS = "ShownBeforeCells";
}
