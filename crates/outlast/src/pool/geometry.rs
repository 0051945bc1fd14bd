//! Pages, regions and size classes: the arithmetic of a pool's space.
//!
//! A pool is an array of pages, grouped in *regions*. A region has as many pages as one page of
//! descriptors can describe, and that page of descriptors is its first. (In the first region it
//! comes after the header and the named roots.) A *run* is one or more adjacent pages of a region.
//! It holds blocks of one size class, or one large block.

use super::layout::SYSTEM_BYTES;

/// log2 of the page size of pools created by default.
pub const DEFAULT_PAGE_BITS: u32 = 16;
/// log2 of the smallest and the largest page size.
pub const PAGE_BITS: std::ops::RangeInclusive<u32> = 12..=20;

/// Block sizes in bytes, ascending. The index of a size is its class, which is written to media.
pub static CLASSES: [u32; 46] = {
    let mut sizes = [0; 46];
    let mut n = 0;
    while n < 16 {
        sizes[n] = 16 * (n as u32 + 1);
        n += 1;
    }
    // Four steps per doubling, plus the exact sizes of hash table segments.
    let mut base = 256;
    while base < 32768 {
        let mut quarter = 1;
        while quarter <= 4 {
            if n > 0 && sizes[n - 1] == 16384 {
                sizes[n] = 17152;
                sizes[n + 1] = 17664;
                n += 2;
            }
            sizes[n] = base + base / 4 * quarter;
            n += 1;
            quarter += 1;
        }
        base *= 2;
    }
    assert!(n == 46);
    sizes
};

/// Sizes in eighths of a page, ascending, of blocks that are too large for [`CLASSES`]. Their classes
/// follow those. A size that whole pages hold as well is not among them.
pub static EIGHTHS: [u64; 12] = [1, 2, 3, 4, 5, 6, 7, 10, 12, 14, 20, 28];

/// Number of size classes.
pub const CLASS_COUNT: usize = CLASSES.len() + EIGHTHS.len();

/// The class of a block that takes whole pages.
pub const LARGE: u8 = 0xff;

/// The arithmetic for one page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    page_bits: u32,
    /// Number of [`CLASSES`] whose blocks are small enough for these pages.
    classes: u8,
}

impl Geometry {
    /// Returns the geometry for pages of `1 << page_bits` bytes, or `None` if that is out of range.
    pub fn new(page_bits: u32) -> Option<Self> {
        if !PAGE_BITS.contains(&page_bits) {
            return None;
        }
        let classes =
            CLASSES.partition_point(|&size| u64::from(size) <= 1 << (page_bits - 1)) as u8;
        Some(Geometry { page_bits, classes })
    }

    /// Bytes in a page.
    pub fn page_bytes(self) -> u64 {
        1 << self.page_bits
    }

    /// log2 of the page size.
    pub fn page_bits(self) -> u32 {
        self.page_bits
    }

    /// Number of whole pages in `bytes`.
    pub fn pages_in(self, bytes: u64) -> u32 {
        (bytes >> self.page_bits).min(u64::from(u32::MAX)) as u32
    }

    /// Number of pages needed for `bytes`.
    pub fn pages_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.page_bytes())
    }

    /// The page that contains the byte at `offset`.
    pub fn page_of(self, offset: u64) -> u32 {
        (offset >> self.page_bits).min(u64::from(u32::MAX)) as u32
    }

    /// Offset of a page's first byte.
    pub fn offset_of(self, page: u32) -> u64 {
        u64::from(page) << self.page_bits
    }

    /// Pages in a region.
    pub fn region_pages(self) -> u32 {
        (self.page_bytes() / 8) as u32
    }

    /// The page that holds a region's descriptors.
    pub fn descriptor_page(self, region: u32) -> u32 {
        if region == 0 {
            SYSTEM_BYTES.div_ceil(self.page_bytes()) as u32
        } else {
            region * self.region_pages()
        }
    }

    /// The first page that can hold data.
    pub fn first_page(self) -> u32 {
        self.descriptor_page(0) + 1
    }

    /// Whether a page belongs to the pool's own structures.
    pub fn is_system(self, page: u32) -> bool {
        page < self.first_page() || page.is_multiple_of(self.region_pages())
    }

    /// Offset of a page's descriptor.
    pub fn descriptor_offset(self, page: u32) -> u64 {
        let region = page / self.region_pages();
        self.offset_of(self.descriptor_page(region)) + u64::from(page % self.region_pages()) * 8
    }

    /// Number of pages from `page` to the end of its region.
    pub fn left_in_region(self, page: u32) -> u32 {
        self.region_pages() - page % self.region_pages()
    }

    /// The largest block of [`CLASSES`] that a pool with these pages has, in bytes.
    pub fn small_max(self) -> u64 {
        CLASSES[usize::from(self.classes) - 1].into()
    }

    /// The largest possible block, in bytes: the first region without the pool's own pages.
    pub fn large_max(self) -> u64 {
        u64::from(self.region_pages() - self.first_page()) << self.page_bits
    }

    /// The class of a block of `bytes`; [`LARGE`] if it takes whole pages.
    pub fn class_for(self, bytes: u64) -> u8 {
        // The first sixteen are the multiples of 16.
        let class = match bytes {
            0..=256 => (bytes.max(1) - 1) / 16,
            _ => CLASSES.partition_point(|&size| u64::from(size) < bytes) as u64,
        };
        if class < u64::from(self.classes) { class as u8 } else { self.eighths_for(bytes) }
    }

    /// The class of a block that is too large for [`CLASSES`].
    #[cold]
    fn eighths_for(self, bytes: u64) -> u8 {
        let needed = bytes.div_ceil(self.page_bytes() / 8);
        let place = EIGHTHS.iter().position(|&eighths| eighths >= needed);
        match place.filter(|&n| EIGHTHS[n] < needed.next_multiple_of(8)) {
            Some(n) => (CLASSES.len() + n) as u8,
            None => LARGE,
        }
    }

    /// Size of a block of this class in eighths of a page, if the class is one of [`EIGHTHS`] and
    /// exists: [`CLASSES`] has no block of that size.
    fn eighths(self, class: u8) -> Option<u64> {
        let place = usize::from(class).checked_sub(CLASSES.len())?;
        let exists = |eighths: &u64| eighths << (self.page_bits - 3) > self.small_max();
        EIGHTHS.get(place).copied().filter(exists)
    }

    /// Size of a block of this class in bytes; `None` for [`LARGE`] and unknown classes.
    #[inline]
    pub fn class_bytes(self, class: u8) -> Option<u64> {
        match CLASSES.get(usize::from(class)) {
            Some(&bytes) => (class < self.classes).then_some(u64::from(bytes)),
            None => Some(self.eighths(class)? << (self.page_bits - 3)),
        }
    }

    /// Number of pages in a run of blocks of this class, which is not [`LARGE`]. If one page holds
    /// fewer than 16 blocks of [`CLASSES`], the run has enough pages for 15, so that little space is
    /// left over. A run of [`EIGHTHS`] has the fewest pages that leave nothing over.
    pub fn run_pages(self, class: u8) -> u32 {
        if let Some(eighths) = self.eighths(class) {
            return (eighths >> eighths.trailing_zeros().min(3)) as u32;
        }
        let bytes = u64::from(CLASSES[usize::from(class)]);
        if bytes * 16 <= self.page_bytes() { 1 } else { self.pages_for(bytes * 15) as u32 }
    }

    /// Number of blocks in a run.
    pub fn run_blocks(self, bytes: u64, pages: u32) -> u32 {
        ((u64::from(pages) << self.page_bits) / bytes) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_fit_their_requests() {
        assert!(CLASSES.windows(2).all(|w| w[0] < w[1]));
        assert!(CLASSES.iter().all(|c| c % 16 == 0));
        let g = Geometry::new(16).unwrap();
        for bytes in 1..=g.small_max() {
            let class = g.class_for(bytes);
            let size = g.class_bytes(class).unwrap();
            assert!(size >= bytes);
            assert!(bytes <= 16 || u64::from(CLASSES[usize::from(class) - 1]) < bytes);
            assert!(size <= bytes + bytes / 4 + 16, "{bytes} -> {size}");
        }
        assert_eq!(g.class_bytes(g.class_for(17152)), Some(17152));
        assert_eq!(g.class_bytes(g.class_for(17664)), Some(17664));
    }

    fn all() -> impl Iterator<Item = Geometry> {
        PAGE_BITS.map(|bits| Geometry::new(bits).unwrap())
    }

    #[test]
    fn every_size_has_a_class_or_takes_whole_pages() {
        for g in all() {
            for bytes in (1..=g.page_bytes()).chain((0..40).map(|n| n * g.page_bytes() / 8 + 1)) {
                let class = g.class_for(bytes);
                let fits = g.class_bytes(class).map_or(class == LARGE, |size| size >= bytes);
                assert!(fits, "{bytes} with {g:?}");
            }
        }
    }

    #[test]
    fn blocks_between_half_a_page_and_four_waste_at_most_a_quarter() {
        for page_bits in PAGE_BITS {
            let g = Geometry::new(page_bits).unwrap();
            let eighth = g.page_bytes() / 8;
            for bytes in (4 * eighth + 1..=32 * eighth).step_by(97) {
                let class = g.class_for(bytes);
                let whole = g.pages_for(bytes) * g.page_bytes();
                let size = g.class_bytes(class).unwrap_or(whole);
                assert!(size <= whole && size - bytes <= bytes / 4, "{bytes} -> {size}, {g:?}");
                assert!(size.is_multiple_of(512), "{bytes}");
            }
        }
    }

    /// These numbers are the format: docs/format.md has them.
    #[test]
    fn classes_in_eighths_fill_their_runs() {
        let g = Geometry::new(16).unwrap();
        let runs = [(5, 5), (6, 3), (7, 7), (10, 5), (12, 3), (14, 7), (20, 5), (28, 7)];
        for (class, (eighths, pages)) in (50..).zip(runs) {
            assert_eq!(g.class_for(eighths * 8192), class);
            assert_eq!((g.class_bytes(class), g.run_pages(class)), (Some(eighths * 8192), pages));
            assert!(u64::from(pages) * 8 % eighths == 0, "{eighths} in {pages}");
        }
        // Half a page and less are too small to be in eighths of these pages.
        assert!((46..50).all(|class| g.class_bytes(class).is_none()));
        let whole = [(7, 8), (14, 16), (15, 16), (20, 24), (28, 32)];
        for (more_than, at_most) in whole {
            assert_eq!(g.class_for(more_than * 8192 + 1), LARGE);
            assert_eq!(g.class_for(at_most * 8192), LARGE);
        }
        let g = Geometry::new(20).unwrap();
        let runs = [(1, 1), (2, 1), (3, 3), (4, 1)];
        for (class, (eighths, pages)) in (46..).zip(runs) {
            assert_eq!(g.class_for(eighths << 17), class);
            assert_eq!((g.class_bytes(class), g.run_pages(class)), (Some(eighths << 17), pages));
        }
        assert_eq!(g.class_for(32_769), 46);
    }

    #[test]
    fn runs_waste_little() {
        for g in all() {
            for class in 0..CLASS_COUNT as u8 {
                let Some(size) = g.class_bytes(class) else { continue };
                let pages = g.run_pages(class);
                let used = u64::from(g.run_blocks(size, pages)) * size;
                let total = u64::from(pages) * g.page_bytes();
                assert!(total - used <= total / 15, "{size} in {pages} pages of {g:?}");
            }
        }
    }

    #[test]
    fn descriptors_lie_in_their_region() {
        let g = Geometry::new(12).unwrap();
        assert_eq!(g.descriptor_page(0), 32);
        assert_eq!(g.descriptor_offset(33), 32 * 4096 + 33 * 8);
        assert_eq!(g.descriptor_offset(512), 512 * 4096);
        assert!(g.is_system(512) && g.is_system(31) && !g.is_system(33) && !g.is_system(513));
        for page_bits in PAGE_BITS {
            let g = Geometry::new(page_bits).unwrap();
            assert!(g.descriptor_offset(0) >= SYSTEM_BYTES, "2^{page_bits}");
            assert!(g.is_system(g.descriptor_page(0)) && g.large_max() > 0);
        }
    }
}
