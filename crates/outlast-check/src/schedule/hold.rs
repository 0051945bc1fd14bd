//! What a thread keeps across later operations: a reference, or an iteration that has begun.

use super::call::{Asked, reference, scanned};
use crate::codec::Form;
use crate::history::{Answer, Call};
use crate::with_form;
use outlast::RecordForm;
use outlast::internals::db::store::{OpenMap, Store};
use outlast::internals::index::record::RecordRef;
use outlast::internals::index::{Bytes, Cursor, Inline};
use outlast::internals::pmem::Traced;
use outlast::internals::pool::core::Core;
use self_cell::self_cell;
use std::sync::Arc;

/// See the module's documentation.
pub(super) struct Held {
    /// The pool that the reference or the iteration belongs to.
    core: Arc<Core<Traced>>,
    what: What,
}

enum What {
    /// A reference keeps its block from reuse. It borrows its map, but does not keep the pool open.
    Reference { reference: OfMap, value: u64, form: RecordForm },
    /// An iteration keeps its map open. The records are those that it has reported so far.
    Iteration { map: Arc<OpenMap>, cursor: Cursor, records: Vec<(u64, u64)> },
}

self_cell!(
    /// A reference, with the map that it borrows.
    struct OfMap {
        owner: Arc<OpenMap>,
        #[covariant]
        dependent: RecordRef,
    }
);

/// Gets a reference, or begins an iteration. An iteration has no result yet.
pub(super) fn hold(
    store: &Store<Traced>,
    map: Arc<OpenMap>,
    call: Call,
) -> Result<(Option<Answer>, Option<Held>), Asked> {
    let held = |what| Some(Held { core: Arc::clone(store.core()), what });
    let Some(key) = call.key() else {
        let mut cursor = Cursor::start();
        let records = with_form!(map.index(), R, index => scanned::<R>(&**index, &mut cursor))?;
        return Ok((None, held(What::Iteration { map, cursor, records })));
    };
    let form = map.info().form;
    let mut value = None;
    let reference = OfMap::try_new(map, |map| {
        match with_form!(map.index(), R, index => reference::<R>(&**index, key)) {
            Ok(Some((reference, found))) => {
                value = Some(found);
                Ok(reference)
            }
            Ok(None) => Err(None),
            Err(error) => Err(Some(error)),
        }
    });
    let held = match (reference, value) {
        (Ok(reference), Some(value)) => held(What::Reference { reference, value, form }),
        (Err(Some(error)), _) => return Err(error),
        _ => None,
    };
    Ok((Some(Answer::Value(value)), held))
}

impl Held {
    /// Reads through a reference, which must give the same value as before; or reads the rest of an
    /// iteration, and returns all that it has reported. Once the pool is closed, both must fail,
    /// unless there is nothing left to read from the pool.
    pub(super) fn read(self) -> Result<Option<Answer>, Asked> {
        let was_open = self.core.check().is_ok();
        let (answer, has_read) = match self.what {
            What::Reference { reference, value, form } => {
                let bytes = reference.borrow_dependent().to_vec()?;
                let reads = match form {
                    RecordForm::Inline => Inline::raw_number(&bytes),
                    RecordForm::Bytes => Bytes::raw_number(&bytes),
                };
                if reads != Some(value) {
                    return Err(Asked::Wrong(format!("a reference to {value} reads {bytes:02x?}")));
                }
                // A reference to an inline value holds a copy of it, so nothing was read from the
                // pool.
                (None, form == RecordForm::Bytes)
            }
            What::Iteration { map, mut cursor, mut records } => {
                let has_read = !cursor.is_done();
                while !cursor.is_done() {
                    records.extend(
                        with_form!(map.index(), R, index => scanned::<R>(&**index, &mut cursor))?,
                    );
                }
                (Some(Answer::Records(records)), has_read)
            }
        };
        if has_read && !was_open {
            return Err(Asked::Wrong("a read succeeded after the pool was closed".into()));
        }
        Ok(answer)
    }
}
