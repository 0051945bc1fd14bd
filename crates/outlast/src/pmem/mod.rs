//! Persistent memory: the media, the mapping, and the seam through which all access goes.

mod flush;
mod mapping;
mod medium;
mod seam;
mod word;

pub use flush::{FlushInstruction, FlushMode, Latency, Real};
pub use mapping::{Access, Alive, Mapping, MappingError};
pub use medium::{Medium, MediumKind};
pub use seam::{Mark, Point, Seam};
pub use word::{LINE, Media, Offset, Word};
