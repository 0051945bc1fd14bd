//! The commit points of the pool: every flush, fence and commit store it performs.

crate::commit_points! { "pool":
    /// The header copies of a new pool: written whole, flushed and fenced before they count;
    /// checksum and sequence number decide.
    HEADER = "header copy": store, flush, fence;
    /// The header that marks the pool dirty, and no longer names the saved free state:
    /// durable before the first store after an open or a sync.
    HEADER_DIRTY = "header copy: dirty": store, flush, fence;
    /// The header that marks the pool clean: durable before sync or close answers.
    HEADER_CLEAN = "header copy: clean": store, flush, fence;
    /// The header that tells of a growth: durable before the new pages are claimed.
    HEADER_SIZE = "header copy: size": store, flush, fence;
    /// The root table, cleared, and the frontier: durable before the first header is written.
    CREATE = "cleared roots": store, flush, fence;
    /// Descriptors of a claimed run. Fenced by [`CLAIM_FENCE`].
    CLAIM_DESCRIPTOR = "claimed run's descriptors": store, flush;
    /// Descriptors of pages that a claim skips at the end of a region: free ones. As above.
    CLAIM_SKIPPED = "skipped pages' descriptors": store, flush;
    /// Both are durable before the frontier: what a claim that a crash cut short has left beyond
    /// it must not be taken for a run.
    CLAIM_ORDER = "fence before the frontier": fence;
    /// The frontier, when a claim moves it. Fenced by [`CLAIM_FENCE`].
    CLAIM_FRONTIER = "frontier": store, flush;
    /// All of them are durable before the run's first block is linked.
    CLAIM_FENCE = "fence after a claim": fence;
    /// The descriptor of a released run: durable before its pages are claimed again.
    RELEASE = "released run's descriptor": store, flush, fence;
    /// The saved free state: durable before the header names it.
    SAVED = "saved free state": store, flush, fence;
    /// The frontier and the roots as an open after a crash finds them: durable before
    /// anything is built on them.
    FOUND = "what an open found": flush, fence;
    /// Fixed words of a new root: durable before its commit word.
    ROOT_FIXED = "new root's fixed words": store, flush, fence;
    /// The commit word of a new root: the map exists.
    ROOT_COMMIT = "new root's commit word": store, flush, fence;
    /// The commit word of a dropped root: the map is gone.
    ROOT_DROP = "dropped root's commit word": store, flush, fence;
}
