//! Opening pools and choosing maps.

use crate::args::{CreateArgs, Survive, SurviveArgs};
use crate::failure::Failure;
use crate::interrupt::is_asked;
use crate::output::complain;
use crate::place;
use crate::progress;
use crate::text::{self, Column};
use outlast::{
    Error, JournalOptions, MAX_KEY_BYTES, MAX_VALUE_BYTES, MapInfo, MapOptions, Pool, PoolOptions,
    RawMap, ReclaimState, RecordForm, Scheme, TornReason,
};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The free space, in bytes, that a file system must have for a pool that will grow to be created.
const LEAST_SPACE_BYTES: u64 = 16 << 20;

/// The size of a new pool, in bytes.
pub(crate) const NEW_POOL_BYTES: u64 = 2 << 20;

/// The name of a map that is created without `--map`.
const DEFAULT_MAP: &str = "main";

/// The environment variable that names the pool, if no argument does.
const POOL_VARIABLE: &str = "OUTLAST_POOL";

/// Returns the path of the pool: the given one, or else the one in the environment variable.
/// Follows a symbolic link as [`resolved`] does.
pub(crate) fn path(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let named = given.map(Path::to_owned);
    let named = named.or_else(|| std::env::var_os(POOL_VARIABLE).map(PathBuf::from));
    let named = named.filter(|path| !path.as_os_str().is_empty()).ok_or_else(|| {
        Failure::Usage(format!(
            "no pool is named: give its file with --pool, or set {POOL_VARIABLE}"
        ))
    })?;
    resolved(named)
}

/// If `path` is a symbolic link, returns the file that it leads to, because the pool's journal is
/// beside that file. But if a program has opened the pool through the link, the journal is beside
/// the link, and then this returns the link.
pub(crate) fn resolved(path: PathBuf) -> Result<PathBuf, Failure> {
    let mut journal = path.as_os_str().to_owned();
    journal.push(".journal");
    let has_journal = || std::fs::read_dir(journal).is_ok_and(|mut files| files.next().is_some());
    if !path.is_symlink() || has_journal() {
        return Ok(path);
    }
    path.canonicalize().map_err(|error| {
        let target = path.read_link().unwrap_or_default();
        Failure::io(format!("{} is a link to {}", path.display(), target.display()), &error)
    })
}

/// Returns the pool and the other file that a command names by its arguments: both are arguments, or the
/// pool is the one that is named for all commands.
pub(crate) fn pool_and_file(
    pool: Option<&Path>,
    files: &[PathBuf],
) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    match (pool, files) {
        (Some(pool), []) => Ok((pool.into(), None)),
        (Some(pool), [file]) => Ok((pool.into(), Some(file.clone()))),
        (Some(pool), [of_argument, ..]) => Err(Failure::Usage(format!(
            "two pools are named: {} by --pool, and {}",
            pool.display(),
            of_argument.display()
        ))),
        (None, []) => Ok((path(None)?, None)),
        (None, [pool, file @ ..]) => Ok((pool.clone(), file.first().cloned())),
    }
}

/// Opens a pool for reading. Nothing is written to it unless it must first be completed from its
/// journal or from the log of a batch.
pub(crate) fn to_read(path: &Path, accept_possibly_torn: bool) -> Result<Pool, Failure> {
    let pool = to_read_if_free(path, accept_possibly_torn)?;
    pool.ok_or_else(|| about(path, Error::Locked { path: path.into() }))
}

/// Like [`to_read`], but returns `None` if another process has the pool open for writing.
pub(crate) fn to_read_if_free(
    path: &Path,
    accept_possibly_torn: bool,
) -> Result<Option<Pool>, Failure> {
    match read(path, accept_possibly_torn) {
        Ok(pool) => Ok(Some(pool)),
        Err(Error::Locked { .. }) => Ok(None),
        Err(error) => Err(about(path, error)),
    }
}

/// Like [`to_read`], but returns the library's error.
pub(crate) fn read(path: &Path, accept_possibly_torn: bool) -> Result<Pool, Error> {
    let options = options(SurviveArgs::default()).accept_possibly_torn(accept_possibly_torn);
    // SAFETY: a user who names a file to this command leaves it alone while it runs. The lock keeps
    // out other users of the library.
    let open = || unsafe { options.open_read_only(path) };
    match open() {
        // After a power loss, or if a process died during a batch. Opening the pool for writing
        // completes it from its journal or from the log of the batch.
        Err(Error::Unfinished { .. }) if !accept_possibly_torn => {
            // SAFETY: as above.
            unsafe { options.open(path)? }.close()?;
            open()
        }
        opened => opened,
    }
}

/// Opens a pool for reading and writing.
pub(crate) fn to_write(path: &Path) -> Result<Pool, Failure> {
    to_write_with(path, SurviveArgs::default())
}

/// Like [`to_write`], but returns the library's error.
pub(crate) fn to_write_or_error(path: &Path) -> Result<Pool, Error> {
    // SAFETY: as in `read`.
    unsafe { options(SurviveArgs::default()).open(path) }
}

/// Like [`to_write`]. Gives the pool a journal if that is asked for.
pub(crate) fn to_write_with(path: &Path, survive: SurviveArgs) -> Result<Pool, Failure> {
    // SAFETY: as in `read`.
    let pool = unsafe { options(survive).open(path) }.map_err(|e| about(path, e))?;
    if survive.journal {
        warn_if_in_memory(path, &pool);
    }
    Ok(pool)
}

/// Warns if a pool was given a journal that is of no use, because the pool or the journal is in
/// memory.
fn warn_if_in_memory(path: &Path, pool: &Pool) {
    let durability = pool.durability();
    // In a pool that was just opened and is not suspect, a journal has no other reason to confirm
    // nothing.
    if !durability.confirmed_survives_power_loss && !durability.is_suspect {
        complain(&format!(
            "{} or its journal is on a file system in memory; it does not survive a power loss",
            path.display()
        ));
    }
}

/// Closes a pool that was opened for writing. First finishes the reclaim after a crash, which would
/// otherwise never end in a pool to which only short commands write.
pub(crate) fn close(pool: Pool) -> Result<(), Failure> {
    let bar = match pool.stats().reclaim {
        ReclaimState::Running => progress::spinner("reclaiming the space that a crash has left"),
        _ => progress::none(),
    };
    let mut failed = 0;
    // A signal cuts this short, like a kill: the next process does the rest.
    while pool.stats().reclaim == ReclaimState::Running && failed < 1_000 && !is_asked() {
        // A step can fail for a map and still advance the reclaim. After too many failures, the next
        // process does the rest.
        let step = pool.step();
        failed += u32::from(step.is_err());
        // The pool's background thread does steps as well, so at times this thread can only wait.
        if !step.unwrap_or(false) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    bar.finish_and_clear();
    close_now(pool)
}

/// Closes a pool. Whatever is left to reclaim is left to the next process.
pub(crate) fn close_now(pool: Pool) -> Result<(), Failure> {
    let has_journal = pool.durability().interval.is_some();
    pool.close().map_err(|error| match error {
        Error::Io { ref source, .. } if has_journal => {
            let then = match source.kind() {
                ErrorKind::NotFound => {
                    "If its file or its journal was removed, `outlast accept` keeps what there is"
                }
                _ => {
                    "Make room if the disk is full: the next command that writes to the pool completes it"
                }
            };
            Failure::Failed(format!(
                "{}; everything stored so far is in the pool's working file and survives the death of any \
                 process, but not yet a power loss. {then}",
                Failure::from(error).message()
            ))
        }
        error => error.into(),
    })
}

/// Returns options for what a pool must survive, which refuse a pool whose working file is gone.
fn options(args: SurviveArgs) -> PoolOptions {
    let mut options = PoolOptions::new().require_working_file(true);
    if args.survive == Some(Survive::ProcessDeath) {
        options = options.survive(outlast::Failure::ProcessDeath);
    }
    if args.journal { options.journal(JournalOptions::new()) } else { options }
}

/// Opens for writing a pool that a power loss may have torn. Starts no background thread.
pub(crate) fn to_accept(path: &Path) -> Result<Pool, Failure> {
    let options = PoolOptions::new().accept_possibly_torn(true).background(false);
    // SAFETY: as in `to_read`.
    let pool = unsafe { options.open(path) };
    pool.map_err(|e| about(path, e))
}

/// Opens a pool for writing, if it exists.
pub(crate) fn existing(path: &Path, args: &CreateArgs) -> Result<Option<Pool>, Failure> {
    match path.symlink_metadata() {
        Ok(_) => to_write_with(path, args.survive).map(Some),
        Err(_) => Ok(None),
    }
}

/// Returns the name of the map into which records will be put: the given one, otherwise that of the
/// pool's only map, or if there is none, the default name. Fails if there are several and none is
/// named.
pub(crate) fn chosen(pool: Option<&Pool>, args: &CreateArgs) -> Result<String, Failure> {
    match &args.which.map {
        Some(name) => Ok(name.clone()),
        None => Ok(pool.map_or(Ok(None), only)?.unwrap_or_else(|| DEFAULT_MAP.into())),
    }
}

/// The map into which records will be put. Neither the map nor its pool is created before
/// [`make`](Target::make), so that the caller can first check that the records suit the map.
pub(crate) struct Target {
    path: PathBuf,
    /// The pool, if it exists.
    pool: Option<Pool>,
    name: String,
    key_type: String,
    value_type: String,
    form: RecordForm,
    scheme: Option<Scheme>,
    /// Whether the records of the map can expire, if it exists.
    expires: Option<bool>,
    /// Whether a new map is one whose records can expire.
    makes_expiry: bool,
    survive: SurviveArgs,
}

impl Target {
    /// Opens the pool if it exists, and determines the map, as [`chosen`] does. Fails if the map has
    /// other types than those given. Neither the map nor the pool has to exist yet.
    /// With `expiry`, the map must be one whose records can expire.
    pub(crate) fn find(path: &Path, args: &CreateArgs, expiry: bool) -> Result<Self, Failure> {
        if let Some(name) = &args.which.map {
            // A name that no map can have is refused before anything is made.
            PoolOptions::new().anonymous()?.raw_map_with(name, "str", "str", &MapOptions::new())?;
        }
        let pool = existing(path, args)?;
        let name = chosen(pool.as_ref(), args)?;
        Target::named(path, pool, name, args)?.with_expiry(expiry)
    }

    /// Determines the map of this name, in a pool that was opened with [`existing`].
    pub(crate) fn named(
        path: &Path,
        pool: Option<Pool>,
        name: String,
        args: &CreateArgs,
    ) -> Result<Self, Failure> {
        let maps = pool.as_ref().map_or_else(Vec::new, Pool::maps);
        let there = maps.into_iter().flatten().find(|info| info.name == name);
        let stored = |of: fn(&MapInfo) -> &String| there.as_ref().map(|info| of(info).clone());
        let schema = |asked: &Option<String>, of| {
            asked.clone().or_else(|| stored(of)).unwrap_or_else(|| "str".into())
        };
        let key_type = schema(&args.key_type, |info| &info.key_schema);
        let value_type = schema(&args.value_type, |info| &info.value_schema);
        // Keys and values are parsed according to the map's types. So refuse other types now,
        // before they lead to a message about the text.
        let args_and_stored = [
            ("key schema", &args.key_type, stored(|info| &info.key_schema)),
            ("value schema", &args.value_type, stored(|info| &info.value_schema)),
        ];
        for (what, asked, stored) in args_and_stored {
            if let (Some(asked), Some(stored)) = (asked, stored)
                && *asked != stored
            {
                let asked = asked.clone();
                return Err(Error::MapMismatch { name, what, stored, asked }.into());
            }
        }
        let form = match &there {
            // The map's form is not always the default one for its types.
            Some(info) => info.form,
            None => RecordForm::of_schemas(&key_type, &value_type),
        };
        let there = there.map(|info| info.expires);
        let target = Target {
            path: path.into(),
            pool,
            name,
            key_type,
            value_type,
            form,
            scheme: args.scheme.or(args.ordered.then_some(Scheme::Phast)),
            expires: there,
            makes_expiry: false,
            survive: args.survive,
        };
        target.with_expiry(args.expiry)
    }

    /// Makes the map one whose records can expire, if `expiry` is set. Fails if there is one whose records
    /// cannot.
    fn with_expiry(self, expiry: bool) -> Result<Self, Failure> {
        match self.expires {
            _ if !expiry => Ok(self),
            Some(true) => Ok(self),
            Some(false) => {
                let (stored, asked) = ("none".into(), "expiry".into());
                let name = self.name;
                Err(Error::MapMismatch { name, what: "expiry", stored, asked }.into())
            }
            None => Ok(Target { makes_expiry: true, form: RecordForm::Bytes, ..self }),
        }
    }

    /// The types of the map's keys and values.
    pub(crate) fn columns(&self) -> (Column, Column) {
        text::columns_of(&self.key_type, &self.value_type, self.form)
    }

    /// Refuses a record that no map can hold, before a map or a pool is created for it.
    pub(crate) fn check_size(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::KeyTooLarge { len: key.len(), max: MAX_KEY_BYTES }.into());
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(Error::ValueTooLarge { len: value.len(), max: MAX_VALUE_BYTES }.into());
        }
        Ok(())
    }

    /// Opens the map, or creates it, with its pool if necessary.
    pub(crate) fn make(self) -> Result<(Pool, RawMap), Failure> {
        let (pool, made) = match self.pool {
            Some(pool) => (pool, false),
            None => create(&self.path, self.survive)?,
        };
        let mut options = MapOptions::new().form(self.form).expiry(self.makes_expiry);
        if let Some(scheme) = self.scheme {
            options = options.scheme(scheme);
        }
        match pool.raw_map_with(&self.name, &self.key_type, &self.value_type, &options) {
            Ok(map) => Ok((pool, map)),
            Err(error) => {
                // Remove the pool if it was created only for this map.
                // It loses its name before its lock, so no process opens it in between.
                let has_journal = pool.durability().interval.is_some();
                let removed = made && std::fs::remove_file(&self.path).is_ok();
                let removed = removed && pool.close().is_ok();
                // Only a pool that was created with a journal found no segments of another one.
                if removed && has_journal {
                    let _ = remove_journal(&self.path);
                }
                Err(error.into())
            }
        }
    }
}

/// Removes the journal beside a pool that was removed: its segments, and its directory if that is
/// empty then.
pub(crate) fn remove_journal(pool: &Path) -> std::io::Result<()> {
    let mut journal = pool.as_os_str().to_owned();
    journal.push(".journal");
    for entry in std::fs::read_dir(&journal).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("segment-")) {
            std::fs::remove_file(entry.path())?;
        }
    }
    let _ = std::fs::remove_dir(&journal);
    Ok(())
}

/// Creates a pool, or opens the one that another process has created meanwhile. Returns whether it was
/// created here.
fn create(path: &Path, survive: SurviveArgs) -> Result<(Pool, bool), Failure> {
    let advice = "; name a file elsewhere with --pool";
    place::check_space(place::parent(path), LEAST_SPACE_BYTES, advice)?;
    // SAFETY: as in `to_read`.
    match unsafe { options(survive).create(path) } {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {
            Ok((to_write_with(path, survive)?, false))
        }
        Err(error) => Err(about(path, error)),
        Ok(pool) => {
            if survive.journal {
                warn_if_in_memory(path, &pool);
            }
            Ok((pool, true))
        }
    }
}

/// Creates a pool with these options.
pub(crate) fn create_as(path: &Path, options: &PoolOptions) -> Result<Pool, Failure> {
    // SAFETY: as in `to_read`.
    let pool = unsafe { options.create(path) };
    pool.map_err(|e| about(path, e))
}

/// Describes an error of the pool at `path`.
pub(crate) fn about(path: &Path, error: Error) -> Failure {
    match error {
        // These errors name the path themselves.
        Error::NoSuchPool { .. } | Error::Io { .. } => error.into(),
        Error::Locked { .. } => Failure::Failed(format!(
            "{}: in use: another process has it open. A pool can be open in one process that writes, or in \
             several that only read. A program lets others read a pool that it has open with `outlast_live::serve`",
            path.display()
        )),
        Error::NoJournal { .. } => Failure::Failed(format!(
            "{}: in use, and it has no journal: only the process that has it open can copy it. Back it \
             up once it is closed, or give it a journal",
            path.display()
        )),
        Error::NotAPool { .. } if is_empty(path) => Failure::Damaged(format!(
            "{} is an empty file, not a pool. If it never was one, remove it: put and load create a pool",
            path.display()
        )),
        Error::IncompleteJournal { .. } => Failure::Damaged(format!(
            "{}: {}. Put it back if it is elsewhere. Otherwise restore a snapshot, or see what `outlast \
             accept` can do without it; get, scan, stat and verify read what is left with \
             --accept-possibly-torn",
            path.display(),
            why_refused(&error)
        )),
        Error::NoWorkingFile { .. } => Failure::Damaged(format!(
            "{}: {}. Put the working file back if it is elsewhere. Otherwise let `outlast accept` complete \
             the pool from its journal; what was not durable is then lost",
            path.display(),
            why_refused(&error)
        )),
        Error::PossiblyTorn { reason: TornReason::Unknown { .. }, .. } => {
            Failure::Damaged(format!(
                "{}: {}. If it is the original, let `outlast accept` check it and put it back into use; nothing \
             is discarded. If it is a copy, copy the original again, with `outlast backup`",
                path.display(),
                why_refused(&error)
            ))
        }
        Error::OtherWorkingFile { .. } => Failure::Damaged(format!(
            "{error}. Once it is elsewhere, `outlast accept` completes the pool"
        )),
        Error::CopyOfPool { .. } => {
            Failure::Damaged(format!("{}: {error}. `outlast accept` does so", path.display()))
        }
        Error::PossiblyTorn { ref reason, .. } => {
            let again = match reason {
                TornReason::Copy => " Copy the original again, with `outlast backup`.",
                _ => "",
            };
            Failure::Damaged(format!(
                "{pool}: {why}.{again} Restore a snapshot if there is one. \
                 Otherwise, `outlast accept` checks all of it, and puts it back into use if it is \
                 sound; `outlast salvage` copies what can be read into a new pool; get, scan, stat and \
                 verify read it with --accept-possibly-torn",
                pool = path.display(),
                why = why_refused(&error)
            ))
        }
        error => Failure::from(error).within(path.display()),
    }
}

fn is_empty(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == 0)
}

/// Says why a pool was refused, without the library's advice, which is meant for programs.
pub(crate) fn why_refused(error: &Error) -> String {
    match error {
        Error::IncompleteJournal { why, .. } => format!("the journal is incomplete: {why}"),
        Error::PossiblyTorn { reason, damaged_copy, .. } => {
            let but = damaged_copy.as_ref().map_or_else(String::new, |damage| {
                format!(
                    " (according to one header copy; the other, which may be newer, is damaged {damage})"
                )
            });
            format!("possibly torn: {reason}{but}")
        }
        Error::NoWorkingFile { .. } => {
            "its process died, and the working file is gone, although the machine was not restarted"
                .into()
        }
        Error::PoolFull { .. } | Error::DiskFull { .. } => {
            format!("a batch was cut short by a crash, and is perhaps half made: {error}")
        }
        other => other.to_string(),
    }
}

/// The names of all maps, except those whose roots are damaged.
pub(crate) fn names(pool: &Pool) -> Vec<String> {
    pool.maps().into_iter().flatten().map(|info: MapInfo| info.name).collect()
}

/// Returns the name of the pool's only map, or `None` if there is no map. Fails with a list if
/// there are several.
fn only(pool: &Pool) -> Result<Option<String>, Failure> {
    Ok(only_of(&names(pool))?.map(str::to_owned))
}

/// Like [`only`], of the maps with these names.
pub(crate) fn only_of(names: &[String]) -> Result<Option<&str>, Failure> {
    match names {
        [] => Ok(None),
        [name] => Ok(Some(name)),
        several => {
            let (n, list) = (several.len(), listed(several));
            Err(Failure::Usage(format!("the pool has {n} maps, name one with --map: {list}")))
        }
    }
}

/// The failure of a command that needs a map.
pub(crate) fn no_maps() -> Failure {
    Failure::Failed("the pool has no maps".into())
}

/// Opens the map of this name, or the only one.
pub(crate) fn map(pool: &Pool, name: Option<&str>) -> Result<RawMap, Failure> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => match only(pool)? {
            Some(name) => name,
            None => match pool.maps().into_iter().find_map(Result::err) {
                Some(error) => return Err(error.into()),
                None => return Err(no_maps()),
            },
        },
    };
    pool.raw_map(&name).map_err(|error| no_such_map(&names(pool), error))
}

/// Describes an error of a call that names a map. If there is no such map, lists the maps that
/// exist.
pub(crate) fn no_such_map(names: &[String], error: Error) -> Failure {
    if !matches!(error, Error::NoSuchMap { .. }) {
        return error.into();
    }
    match names {
        [] => Failure::Failed(format!("{error}; the pool has no maps")),
        there => Failure::Failed(format!("{error}; the pool has: {}", listed(there))),
    }
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| text::name(name)).collect::<Vec<_>>().join(", ")
}
