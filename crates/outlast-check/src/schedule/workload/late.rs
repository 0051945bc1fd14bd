//! Directed schedules in which a thread is held until others have done the same work, and have
//! reused the space that this work freed.

use super::Holding;
use super::closing::Numbers;
use crate::history::Call;
use crate::schedule::act::Act;
use crate::session::Do;
use outlast::internals::pmem::Point;

/// How many records the last thread inserts: enough to fill an overflow bucket and need another.
const MORE: u64 = 18;

/// Returns the scripts of the threads, each with how the threads are held. The table's keys share a
/// bucket.
///
/// - One thread is held in an operation. The second does the work, and makes other maps and more
///   records, which take the freed space. The third reads.
/// - The same, but the first thread is held a second time, and the third thread reuses the space.
/// - The first thread does the work, and is held near its end. A lookup begins and is held. The
///   first thread goes on and is held again, until the third has changed what the lookup reads.
pub(super) fn scripts(
    numbers: &Numbers<'_>,
    takes: &'static Point,
    ends: &'static Point,
) -> Vec<([Vec<Act>; 3], Holding)> {
    let (target, one) = (numbers.records, numbers.one);
    let work = [vec![numbers.change(target, Do::Insert(1_000))], vec![Act::Background; 4]].concat();
    let more = (1..MORE).map(|n| numbers.change(target + n, Do::Insert(1_000 + n)));
    let reuse = [vec![Act::CreateMap(0), Act::CreateMap(1)], more.collect()].concat();
    let after = [&work[..], &reuse].concat();
    let look = [Act::Call(numbers.get(one)), Act::Call(numbers.get(target)), Act::Call(Call::Scan)];
    let late = numbers.change(target + MORE, Do::Insert(2_000));
    let victims =
        [late, numbers.change(one, Do::Update(2_000)), Act::Call(numbers.get(one)), look[2]];
    let mut scripts: Vec<_> = victims
        .iter()
        .map(|&victim| ([vec![victim], after.clone(), look.to_vec()], Holding::First))
        .collect();
    scripts.push(([vec![late], work.clone(), reuse], Holding::Twice(takes)));
    // The thread that does the work is held near its end. A lookup begins, and is held until others
    // use what the work has made.
    let changes = [numbers.reuse(one), look.to_vec()].concat();
    let lookup = vec![Act::Call(numbers.get(one))];
    scripts.push(([work, lookup, changes], Holding::Both(ends)));
    scripts
}
