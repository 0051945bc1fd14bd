//! Bags of words: group hashing's trace `Bag-of-Words` (4.1).
//!
//! [`read`] reads a collection in the format of the UCI machine learning repository's "docword"
//! files. [`Bags`] generates one with the statistics of the collection that the paper uses, PubMed
//! abstracts: 8.2 million documents, 141,043 words, 483 million pairs of document and word, so 59
//! distinct words a document. (The paper counts 82 million items.) Words are zipfian, and a
//! document's words are distinct and ascending, as in the file. The words themselves are made up.

use super::BadLine;
use super::draw::{Draw, Zipfian};
use std::collections::BTreeSet;
use std::io::BufRead;

/// A word of a document, and how often it occurs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The document, from 1.
    pub document: u64,
    /// The word, from 1.
    pub word: u64,
    /// Its number of occurrences.
    pub count: u64,
}

impl Entry {
    /// The key of group hashing's trace: the combination of document and word.
    pub fn key(self) -> u64 {
        self.document << 32 | self.word
    }
}

/// The first three lines of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of documents.
    pub documents: u64,
    /// Number of words in the vocabulary.
    pub words: u64,
    /// Number of entries.
    pub entries: u64,
}

/// Reads a docword file: three lines with the numbers of documents, words and entries, and then a
/// line for each entry, "document word count". The file must be unpacked.
///
/// # Errors
/// [`BadLine`] if the first three lines are not such numbers; as an item, if another line is not an
/// entry with a document and a word that exist, or if there are not as many entries as announced.
pub fn read(
    file: impl BufRead,
) -> Result<(Header, impl Iterator<Item = Result<Entry, BadLine>>), BadLine> {
    let mut lines = (1..).zip(file.lines());
    let mut number = |expected: &'static str| {
        let (line, text) = lines.next().ok_or(BadLine::new(0, expected))?;
        let text = text.map_err(|e| BadLine::unreadable(line, e))?;
        text.trim().parse().map_err(|_| BadLine::new(line, expected))
    };
    let header = Header {
        documents: number("the number of documents")?,
        words: number("the number of words")?,
        entries: number("the number of entries")?,
    };
    let mut left = header.entries;
    let mut failed = false;
    let entries = std::iter::from_fn(move || {
        if failed {
            return None;
        }
        let result = match lines.next() {
            None if left == 0 => return None,
            None => Err(BadLine::new(header.entries + 4 - left, "as many entries as announced")),
            Some((line, Err(e))) => Err(BadLine::unreadable(line, e)),
            Some((line, Ok(text))) if left > 0 => entry(&text, line, header),
            Some((line, Ok(_))) => Err(BadLine::new(line, "the end, after the last entry")),
        };
        left = left.saturating_sub(1);
        failed = result.is_err();
        Some(result)
    });
    Ok((header, entries))
}

fn entry(text: &str, line: u64, header: Header) -> Result<Entry, BadLine> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let next = |part: Option<Result<u64, _>>| part.and_then(Result::ok);
    let parts = [numbers.next(), numbers.next(), numbers.next()].map(next);
    match (parts, numbers.next()) {
        ([Some(document), Some(word), Some(count)], None)
            if (1..=header.documents).contains(&document) && (1..=header.words).contains(&word) =>
        {
            Ok(Entry { document, word, count })
        }
        _ => Err(BadLine::new(line, "a document, a word and a count")),
    }
}

/// Generates entries, document by document.
#[derive(Debug, Clone)]
pub struct Bags {
    draw: Draw,
    words: Zipfian,
    /// Distinct words of a document: from 1 to twice the mean less 1, uniform.
    most_words: u64,
    document: u64,
    /// The words of the document that are left, in descending order.
    left: Vec<u64>,
}

/// Words in the vocabulary of PubMed abstracts, and the mean number of distinct words a document.
const PUBMED_WORDS: u64 = 141_043;
const PUBMED_MEAN: u64 = 59;

impl Bags {
    /// Creates an endless sequence with the statistics of PubMed abstracts.
    pub fn pubmed(seed: u64) -> Bags {
        Bags {
            draw: Draw::new(seed),
            words: Zipfian::new(PUBMED_WORDS, 0.99),
            most_words: 2 * PUBMED_MEAN - 1,
            document: 0,
            left: Vec::new(),
        }
    }
}

impl Iterator for Bags {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.left.is_empty() {
            self.document += 1;
            let count = 1 + self.draw.below(self.most_words) as usize;
            let mut words = BTreeSet::new();
            while words.len() < count {
                words.insert(1 + self.words.number(&mut self.draw));
            }
            self.left = words.into_iter().rev().collect();
        }
        let word = self.left.pop()?;
        Some(Entry { document: self.document, word, count: 1 + self.draw.below(3) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn all(text: &str) -> Result<(Header, Vec<Entry>), BadLine> {
        let (header, entries) = read(text.as_bytes())?;
        Ok((header, entries.collect::<Result<_, _>>()?))
    }

    #[test]
    fn a_file_is_read_as_it_is() {
        let (header, entries) = all("2\n10\n3\n1 4 2\n1 10 1\n2 4 7\n").unwrap();
        assert_eq!(header, Header { documents: 2, words: 10, entries: 3 });
        let entry = |document, word, count| Entry { document, word, count };
        assert_eq!(entries, [entry(1, 4, 2), entry(1, 10, 1), entry(2, 4, 7)]);
        assert_eq!(entries[2].key(), 0x2_0000_0004);
    }

    #[test]
    fn what_is_no_such_file_is_refused_with_the_line() {
        let line = |text| all(text).unwrap_err().line;
        assert_eq!(line("2\nten\n3\n"), 2);
        assert_eq!(line("2\n10\n2\n1 4 2\n1 11 1\n"), 5, "no such word");
        assert_eq!(line("2\n10\n2\n0 4 2\n"), 4, "documents count from 1");
        assert_eq!(line("2\n10\n2\n1 4\n"), 4, "no count");
        assert_eq!(line("2\n10\n2\n1 4 2 9\n"), 4, "a fourth number");
        assert_eq!(line("2\n10\n2\n1 4 2\n"), 5, "one entry is missing");
        assert_eq!(line("2\n10\n1\n1 4 2\n1 5 2\n"), 5, "one too many");
    }

    #[test]
    fn generated_bags_have_the_statistics() {
        let entries: Vec<Entry> = Bags::pubmed(1).take(200_000).collect();
        let keys: HashSet<u64> = entries.iter().map(|entry| entry.key()).collect();
        assert_eq!(keys.len(), entries.len(), "distinct");
        assert!(entries.is_sorted_by_key(|entry| entry.key()));
        let documents = entries.last().unwrap().document;
        let mean = entries.len() as f64 / documents as f64;
        assert!((56.0..62.0).contains(&mean), "{mean}");
        assert!(entries.iter().all(|entry| (1..=PUBMED_WORDS).contains(&entry.word)));
        // A document has the most frequent word nearly always, and a rare one nearly never.
        let with = |word| entries.iter().filter(|entry| entry.word == word).count() as u64;
        assert!(with(1) > documents * 8 / 10 && with(10_000) < documents / 10);
    }
}
