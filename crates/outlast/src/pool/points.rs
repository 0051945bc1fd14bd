//! The commit points of the pool: every flush, fence and commit store it performs.

crate::commit_points! { "pool":
    /// The header copies of a new pool, and the one that records the first use of a feature, durable before what
    /// needs it. Each is written whole, flushed and fenced before it counts;
    /// checksum and sequence number decide which one is valid.
    HEADER = "header copy": store, flush, fence;
    /// The header that marks the pool dirty and no longer names the saved free state. Durable
    /// before the first store after an open or a sync.
    HEADER_DIRTY = "header copy: dirty": store, flush, fence;
    /// The header that marks the pool clean. Durable before sync or close returns.
    HEADER_CLEAN = "header copy: clean": store, flush, fence;
    /// The header that records a growth. Durable before the new pages are claimed.
    HEADER_SIZE = "header copy: size": store, flush, fence;
    /// The cleared root table and the frontier. Durable before the first header is written.
    CREATE = "cleared roots": store, flush, fence;
    /// Descriptors of a claimed run. Fenced by [`CLAIM_ORDER`] if the claim moves the frontier,
    /// otherwise by [`CLAIM_FENCE`].
    CLAIM_DESCRIPTOR = "claimed run's descriptors": store, flush;
    /// Descriptors that mark as free the pages that a claim skips at the end of a region. Fenced by
    /// [`CLAIM_ORDER`].
    CLAIM_SKIPPED = "skipped pages' descriptors": store, flush;
    /// Both kinds of descriptor are durable before the frontier. An earlier claim that a crash cut
    /// short may have left descriptors beyond the frontier. If the frontier passed them before they
    /// were overwritten durably, they would be taken for runs.
    CLAIM_ORDER = "fence before the frontier": fence;
    /// The frontier, when a claim moves it. Fenced by [`CLAIM_FENCE`].
    CLAIM_FRONTIER = "frontier": store, flush;
    /// Everything that a claim writes is durable before the run's first block is linked.
    CLAIM_FENCE = "fence after a claim": fence;
    /// The descriptor of a released run. Durable before its pages are claimed again.
    RELEASE = "released run's descriptor": store, flush, fence;
    /// The saved free state. Durable before the header names it.
    SAVED = "saved free state": store, flush, fence;
    /// The header as an open finds it, and after a crash the frontier, the batch word, the roots and the
    /// descriptors of pages that it finds free. Durable before anything is built on them.
    FOUND = "what an open found": flush, fence;
    /// Fixed words of a new root. Durable before its commit word.
    ROOT_FIXED = "new root's fixed words": store, flush, fence;
    /// The commit word of a new root. Once it is durable, the map exists.
    ROOT_COMMIT = "new root's commit word": store, flush, fence;
    /// The log of a batch. Durable before the batch word points to it.
    BATCH_LOG = "batch: log": store, flush, fence;
    /// The batch word. Once it is durable, the batch takes effect. Durable before the first change.
    BATCH_COMMIT = "batch: word": store, flush, fence;
    /// The batch word, which becomes 0 when all changes are durable. Durable before another thread
    /// changes a record, and before the log is free.
    BATCH_DONE = "batch: word cleared": store, flush, fence;
    /// The commit word of a dropped root. Once it is durable, the map is gone.
    ROOT_DROP = "dropped root's commit word": store, flush, fence;
}
