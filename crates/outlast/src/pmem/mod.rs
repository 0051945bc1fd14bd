//! Persistent memory: the media, the mapping, and the seam through which all access goes.

mod flush;
mod mapping;
mod medium;
mod memory;
mod seam;
mod traced;
mod word;

pub use flush::{FlushInstruction, FlushMode, Latency, Real};
pub use mapping::{Access as MapAccess, Alive, Mapping, MappingError};
pub use medium::{Medium, MediumKind};
pub use memory::{Memory, words_of};
pub use seam::{Mark, Point, Seam};
pub use traced::{Access, Control, Counts, Event, Traced};
pub use word::{LINE, Media, Offset, Word};
