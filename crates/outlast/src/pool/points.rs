//! The commit points of the pool: every flush, fence and commit store it performs.

crate::commit_points! { "pool":
    /// A header copy: written whole, flushed and fenced before it counts; its checksum
    /// and sequence number decide.
    HEADER = "header copy";
    /// The root table, cleared before the first header is written.
    CREATE = "cleared roots";
    /// Descriptors of new pages, cleared: durable before the header's size holds them.
    NEW_PAGES = "new pages' descriptors";
    /// Descriptors of a claimed run.
    CLAIM_DESCRIPTOR = "claimed run's descriptors";
    /// The frontier, when a claim moves it.
    CLAIM_FRONTIER = "frontier";
    /// Both of the above are durable before the run's first block is linked.
    CLAIM_FENCE = "fence after a claim";
    /// The descriptor of a released run: durable before its pages are claimed again.
    RELEASE = "released run's descriptor";
    /// The saved free state: durable before the header names it.
    SAVED = "saved free state";
    /// The frontier and the roots as an open after a crash finds them: durable before
    /// anything is built on them.
    FOUND = "what an open found";
    /// Fixed words of a new root: durable before its commit word.
    ROOT_FIXED = "new root's fixed words";
    /// The commit word of a new root: the map exists.
    ROOT_COMMIT = "new root's commit word";
    /// The commit word of a dropped root: the map is gone.
    ROOT_DROP = "dropped root's commit word";
}
