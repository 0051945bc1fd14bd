//! Waiting until what was done survives a power loss.

use super::handle::Pool;
use crate::error::{Error, Result};
use std::task::Poll;

impl Pool {
    /// Waits until everything that was done before this call survives a power loss, as far as the
    /// medium allows: changes whose calls have returned, and changes that a thread has read.
    /// Threads that wait at the same time share one sync of the disk.
    ///
    /// On persistent memory this returns immediately. With a journal, writers are held back only
    /// for a moment, and it takes one write to the disk. On other media it is the same as
    /// [`sync`](Pool::sync), which makes writers wait.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::{JournalOptions, PoolOptions};
    ///
    /// let options = PoolOptions::new().journal(JournalOptions::new());
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { options.create(&path)? };
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// ages.insert("Bob", &40)?;
    /// pool.wait_durable()?; // From here on, both survive a power loss.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if the disk failed. With a journal, the write is repeated in the background, so a
    /// later call can succeed, unless the disk failed to keep the working file: then the pool refuses
    /// all operations until it is opened again. [`Error::FileGone`]. [`Error::NotOpen`]. Without a
    /// journal, those of [`sync`](Pool::sync).
    pub fn wait_durable(&self) -> Result<()> {
        let store = &self.guarded().store;
        let journal = store.core().journal();
        if let Err(closed) = store.check() {
            return Err(journal.and_then(|journal| journal.failure()).unwrap_or(closed));
        }
        match journal {
            Some(journal) => journal.wait(&**store.core())?,
            None if self.durability().survives_power_loss => {}
            None => return store.sync(),
        }
        store.core().check_named()
    }

    /// Like [`wait_durable`](Pool::wait_durable), for async code: the future is ready once everything that
    /// was done before this call survives a power loss. It blocks no thread and needs no runtime. The
    /// journal's thread writes at once, for all tasks and threads that wait at the same time.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// async fn order(pool: &outlast::Pool, number: u64) -> outlast::Result<()> {
    ///     pool.map::<u64, str>("orders")?.put(&number, "12 bolts")?;
    ///     pool.durable().await // From here on, the order survives a power loss.
    /// }
    /// # let options = outlast::PoolOptions::new().journal(outlast::JournalOptions::new());
    /// # // SAFETY: no one else writes this file while the pool is open.
    /// # let pool = unsafe { options.create(&path)? };
    /// # let mut order = std::pin::pin!(order(&pool, 7));
    /// # let mut task = std::task::Context::from_waker(std::task::Waker::noop());
    /// # while order.as_mut().poll(&mut task)?.is_pending() {
    /// #     std::thread::yield_now();
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`wait_durable`](Pool::wait_durable). On a medium where that is the same as
    /// [`sync`](Pool::sync), which blocks, [`Error::Invalid`]. The future keeps the pool open, as a handle does.
    pub fn durable(&self) -> impl Future<Output = Result<()>> + Send + Unpin + use<> {
        let pool = self.clone();
        let mut asked = pool.guarded().store.core().journal().and_then(|journal| journal.ask());
        std::future::poll_fn(move |task| {
            let store = &pool.guarded().store;
            let journal = store.core().journal();
            if let Err(closed) = store.check() {
                let failure = journal.and_then(|journal| journal.failure());
                return Poll::Ready(Err(failure.unwrap_or(closed)));
            }
            match (journal, &asked) {
                (Some(journal), Some(cut)) => {
                    std::task::ready!(journal.poll(cut, task))?;
                    asked = None;
                }
                (None, _) if !pool.durability().survives_power_loss => {
                    let why = "the pool has no journal; call `sync` on a thread that may block";
                    return Poll::Ready(Err(Error::Invalid { what: "wait", why: why.into() }));
                }
                (_, _) => {}
            }
            Poll::Ready(store.core().check_named())
        })
    }
}
