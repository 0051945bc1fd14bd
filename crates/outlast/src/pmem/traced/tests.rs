use super::*;
use crate::pmem::Memory;

struct Never;

impl Control for Never {
    fn before(&self, _: usize, waiting: bool) {
        assert!(waiting, "called before an access");
    }
    fn only_waiting(&self) -> bool {
        true
    }
}

#[repr(C, align(4096))]
struct Page([u64; 512]);

/// Runs `touch` on a page whose words hold their indexes, except for word 100, which has been
/// stored to before. Returns the recorder's digest, and the lines that it counts as read.
fn watched(touch: impl Fn(&Memory<Traced>, &[Word])) -> (u64, Vec<u64>) {
    static AT: Point = Point::new("test", "test");
    let mut page = Page(std::array::from_fn(|i| i as u64));
    let seam = Traced::watching(Box::new(Never), 4096);
    let base = (&raw mut page).cast::<u8>();
    // SAFETY: an aligned page that nothing else uses and that outlives the memory. Its shadow
    // would be in the same page, and is not used.
    let memory = unsafe { Memory::new(base, base, base, 4096, seam.clone()) };
    let words = memory.words(0, 4096).unwrap();
    memory.store(&words[100], 7, &AT);
    touch(&memory, words);
    let lines = seam.lines_read();
    (seam.digest(), (0..64).filter(|&line| lines.contains(line)).collect())
}

#[test]
fn a_watch_tells_what_was_read_and_where_in_no_order() {
    let nothing = watched(|_, _| ());
    assert_eq!(nothing, (0, vec![]));
    let one = watched(|memory, words| {
        memory.load(&words[9]);
    });
    assert_eq!(one.1, [1]);
    let both = watched(|memory, words| {
        memory.load(&words[9]);
        memory.load(&words[511]);
    });
    assert_eq!(both.1, [1, 63]);
    let otherwise = watched(|memory, words| {
        memory.load(&words[511]);
        memory.load(&words[9]);
        memory.load(&words[9]);
    });
    assert_eq!(both, otherwise);
    let other = watched(|memory, words| {
        memory.load(&words[10]);
    });
    assert!(nothing.0 != one.0 && one.0 != both.0 && one.0 != other.0);
}

#[test]
fn what_was_stored_first_is_not_read_of_the_image() {
    let own = watched(|memory, words| {
        memory.load(&words[100]);
    });
    assert_eq!(own, (0, vec![]));
    let exchanged = watched(|memory, words| {
        let (now, then) = (Ordering::AcqRel, Ordering::Acquire);
        static AT: Point = Point::new("test", "test");
        let result = memory.seam().compare_exchange(&words[9], 9, 10, now, then, &AT);
        assert_eq!(result, Ok(9));
        memory.load(&words[9]);
    });
    let read = watched(|memory, words| {
        memory.load(&words[9]);
    });
    assert_eq!(exchanged, read);
}
