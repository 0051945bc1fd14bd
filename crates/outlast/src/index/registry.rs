//! The schemes of this build, one row each. Everything that differs by scheme is derived from this
//! table, here and in the tools. CONTRIBUTING.md says how to add a row.

#[cfg(feature = "clevel")]
use super::clevel;
use super::config::{self, SchemeConfig};
#[cfg(feature = "dash-eh")]
use super::dash_eh;
#[cfg(feature = "dash-lh")]
use super::dash_lh;
#[cfg(feature = "ea-pht")]
use super::ea_pht::{self, ea_pht_h, ea_pht_hpr};
#[cfg(feature = "group")]
use super::group;
#[cfg(feature = "line")]
use super::line;
#[cfg(feature = "phast")]
use super::phast;
use super::{BlockRecord, Index, OrderedRecord, Schemas, WhileOpen};
use crate::error::Result;
use crate::pmem::{Point, Seam};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::fmt;
use std::sync::Arc;

/// The properties of a scheme that the rest of the library and the tools need to know.
#[derive(Debug)]
pub struct SchemeRow {
    /// Its name, as commands take and print it.
    pub name: &'static str,
    /// Whether the scheme is lock-free: some thread always completes its operation, even if others
    /// are stopped at any point.
    pub lock_free: bool,
    /// Whether its maps keep their keys in order.
    pub ordered: bool,
    /// Whether opening a map takes time linear in its size, because it reads every segment, bucket
    /// or leaf header and repairs or flushes what a crash left there. The other schemes do this for each part
    /// when an operation first touches it.
    pub linear_recovery: bool,
    /// Whether its locks lie in the pool. If so, opening a map resets them where needed, so it can
    /// store to the pool even after a clean close.
    pub locks_in_pool: bool,
    /// Bytes of a slot on media.
    pub slot_bytes: u64,
}

macro_rules! schemes {
    ($($(#[$doc:meta])* $scheme:ident = $number:literal, $feature:tt: $module:ident::$table:ident {
        $($property:ident: $value:expr),* $(,)?
    })*) => {
        /// The schemes. The numbers are written to media. [`Scheme::ALL`] lists those of this build.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Scheme {
            $($(#[$doc])* $scheme = $number),*
        }

        impl Scheme {
            /// The schemes of this build, by the crate's features.
            pub const ALL: &'static [Scheme] = &[
                $(#[cfg(feature = $feature)] Scheme::$scheme),*
            ];

            const EVERY: &'static [Scheme] = &[$(Scheme::$scheme),*];

            /// Returns the scheme's row of the registry.
            #[doc(hidden)]
            pub const fn row(self) -> &'static SchemeRow {
                match self {
                    $(Scheme::$scheme => &SchemeRow { $($property: $value),* }),*
                }
            }

            /// Returns the scheme's own commit points, without those of the pool.
            #[doc(hidden)]
            pub fn commit_points(self) -> Vec<&'static Point> {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        Scheme::$scheme => $module::points::PARTS.concat(),
                        #[cfg(not(feature = $feature))]
                        Scheme::$scheme => Vec::new(),
                    )*
                }
            }
        }

        /// The configuration of a map of any scheme: what its creator chooses. It is fixed for the life of
        /// the map.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Config {
            $($(#[$doc])* $scheme(config::$scheme)),*
        }

        $(impl From<config::$scheme> for Config {
            fn from(config: config::$scheme) -> Config {
                Config::$scheme(config)
            }
        })*

        impl Config {
            /// Returns the scheme of the map.
            pub const fn scheme(&self) -> Scheme {
                match self {
                    $(Config::$scheme(_) => Scheme::$scheme),*
                }
            }

            /// Returns the default configuration of a scheme.
            pub fn of(scheme: Scheme) -> Config {
                match scheme {
                    $(Scheme::$scheme => config::$scheme::default().into()),*
                }
            }

            /// For tests: returns the smallest configuration of a scheme, with which a few inserts split
            /// or expand a map.
            #[doc(hidden)]
            pub fn small(scheme: Scheme) -> Config {
                match scheme {
                    $(Scheme::$scheme => config::$scheme::small().into()),*
                }
            }

            /// Checks the values, and returns the configuration for a map whose keys have this schema.
            ///
            /// # Errors
            /// [`Error::Invalid`](crate::Error::Invalid) for a value that is not allowed.
            pub(crate) fn checked(self, key_schema: &str) -> Result<Config> {
                match self {
                    $(Config::$scheme(config) => config.check()?),*
                }
                Ok(match self {
                    $(Config::$scheme(config) => config.for_keys(key_schema).into()),*
                })
            }

            /// Reads the words of a map's root. Returns `None` if they are not those of any map of
            /// this scheme.
            #[doc(hidden)]
            pub fn from_words(scheme: Scheme, words: [u64; 3]) -> Option<Config> {
                match scheme {
                    $(Scheme::$scheme => config::$scheme::from_words(words).map(Config::from)),*
                }
            }

            /// Returns the words for a map's root.
            #[doc(hidden)]
            pub fn to_words(self) -> [u64; 3] {
                match self {
                    $(Config::$scheme(config) => config.to_words()),*
                }
            }

            /// Opens the index of a map whose root is in this slot.
            ///
            /// # Errors
            /// Those of opening the map.
            pub(crate) fn open<S: Seam, R: BlockRecord + OrderedRecord>(
                self,
                core: &Arc<Core<S>>,
                slot: usize,
                schemas: Schemas<R>,
            ) -> Result<Box<dyn Index<R>>> {
                Ok(match self {
                    $(
                        #[cfg(feature = $feature)]
                        Config::$scheme(config) => {
                            let table = $module::$table::<S, R>::open(core, slot, config)?;
                            Box::new(WhileOpen::new(Arc::clone(core), table, schemas))
                        }
                        #[cfg(not(feature = $feature))]
                        Config::$scheme(_) => return Err(crate::error::Error::NotBuilt(Scheme::$scheme.name())),
                    )*
                })
            }

            /// Makes the first blocks of a new map, and flushes them. The caller's fence makes them
            /// durable before the root names them. Returns the scheme's words of the root.
            ///
            /// # Errors
            /// Those of creating the map.
            pub(crate) fn create<S: Seam, R: BlockRecord + OrderedRecord>(
                self,
                core: &Arc<Core<S>>,
            ) -> Result<[u64; ROOT_SCHEME_WORDS]> {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        Config::$scheme(config) => $module::$table::<S, R>::create(core, config),
                        #[cfg(not(feature = $feature))]
                        Config::$scheme(_) => Err(crate::error::Error::NotBuilt(Scheme::$scheme.name())),
                    )*
                }
            }
        }
    };
}

schemes! {
    /// Dash, extendible hashing (Lu et al., VLDB 2020, section 4).
    DashEh = 1, "dash-eh": dash_eh::DashEh {
        name: "dash-eh",
        lock_free: false,
        ordered: false,
        linear_recovery: false,
        locks_in_pool: false,
        slot_bytes: 16,
    }
    /// clevel hashing (Chen et al., USENIX ATC 2020).
    Clevel = 2, "clevel": clevel::Clevel {
        name: "clevel",
        lock_free: true,
        ordered: false,
        linear_recovery: false,
        locks_in_pool: false,
        slot_bytes: 8,
    }
    /// PhaST, an ordered index (Li et al., TPDS 2022).
    Phast = 3, "phast": phast::Phast {
        name: "phast",
        lock_free: false,
        ordered: true,
        linear_recovery: true,
        locks_in_pool: false,
        slot_bytes: 16,
    }
    /// Group hashing (Zhang et al., ICPP 2018).
    Group = 4, "group": group::Group {
        name: "group",
        lock_free: false,
        ordered: false,
        linear_recovery: true,
        locks_in_pool: false,
        slot_bytes: 16,
    }
    /// Dash, linear hashing (Lu et al., VLDB 2020, section 5).
    DashLh = 5, "dash-lh": dash_lh::DashLh {
        name: "dash-lh",
        lock_free: false,
        ordered: false,
        linear_recovery: false,
        locks_in_pool: false,
        slot_bytes: 16,
    }
    /// EA-PHT (Cepeda Chavez, 2020, chapter 3).
    EaPht = 6, "ea-pht": ea_pht::EaPht {
        name: "ea-pht",
        lock_free: false,
        ordered: false,
        linear_recovery: true,
        locks_in_pool: true,
        slot_bytes: 16,
    }
    /// EA-PHT-H (Cepeda Chavez, 2020, chapter 4).
    EaPhtH = 7, "ea-pht": ea_pht_h::EaPhtH {
        name: "ea-pht-h",
        lock_free: false,
        ordered: false,
        linear_recovery: true,
        locks_in_pool: false,
        slot_bytes: 16,
    }
    /// EA-PHT-HPR (Cepeda Chavez, 2020, chapter 5).
    EaPhtHpr = 8, "ea-pht": ea_pht_hpr::EaPhtHpr {
        name: "ea-pht-hpr",
        lock_free: false,
        ordered: false,
        linear_recovery: true,
        locks_in_pool: false,
        slot_bytes: 16,
    }
    /// Line hashing.
    Line = 9, "line": line::Line {
        name: "line",
        lock_free: false,
        ordered: false,
        linear_recovery: false,
        locks_in_pool: false,
        slot_bytes: 16,
    }
}

impl Scheme {
    /// Returns the scheme with this number on media.
    #[doc(hidden)]
    pub fn from_media(number: u8) -> Option<Scheme> {
        Scheme::EVERY.iter().copied().find(|scheme| *scheme as u8 == number)
    }

    /// Returns the scheme's name, as commands take and print it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns whether the scheme's maps keep their keys in order.
    pub fn is_ordered(self) -> bool {
        self.row().ordered
    }

    /// Returns whether the scheme is lock-free: some thread always completes its operation, even if
    /// others are stopped at any point.
    pub fn is_lock_free(self) -> bool {
        self.row().lock_free
    }

    /// Returns whether opening a map takes time linear in its size, because it reads every segment,
    /// bucket or leaf header and repairs or flushes what a crash left there. The other schemes do this for each
    /// part when an operation first touches it.
    pub fn has_linear_recovery(self) -> bool {
        self.row().linear_recovery
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Scheme {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Scheme::ALL.iter().copied().find(|scheme| scheme.name() == s).ok_or_else(|| {
            let known: Vec<_> = Scheme::ALL.iter().map(|s| s.name()).collect();
            format!("unknown scheme {s:?}; known: {}", known.join(", "))
        })
    }
}
