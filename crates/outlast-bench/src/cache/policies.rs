//! Simulators of eviction policies, as the papers describe them. They count hits of keys that all take the same
//! space.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// A policy, with the keys that it holds.
pub trait Policy {
    /// Requests a key, and inserts it if it is absent. Returns whether it was there.
    fn request(&mut self, key: u64) -> bool;
}

/// Least recently used.
pub struct Lru {
    capacity: usize,
    /// When each key was used last.
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    time: u64,
}

impl Lru {
    /// Makes an empty cache.
    pub fn new(capacity: usize) -> Self {
        Lru { capacity, used: HashMap::new(), order: BTreeMap::new(), time: 0 }
    }
}

impl Policy for Lru {
    fn request(&mut self, key: u64) -> bool {
        self.time += 1;
        let before = self.used.insert(key, self.time);
        if let Some(time) = before {
            self.order.remove(&time);
        } else if self.used.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.used.remove(&oldest);
        }
        self.order.insert(self.time, key);
        before.is_some()
    }
}

const NONE: usize = usize::MAX;

/// A key in SIEVE's queue.
#[derive(Clone, Copy)]
struct Node {
    key: u64,
    visited: bool,
    /// The neighbours towards the head and the tail.
    newer: usize,
    older: usize,
}

/// SIEVE (Zhang et al., NSDI 2024).
pub struct Sieve {
    places: HashMap<u64, usize>,
    nodes: Vec<Node>,
    free: Vec<usize>,
    head: usize,
    tail: usize,
    hand: usize,
}

impl Sieve {
    /// Makes an empty cache.
    pub fn new(capacity: usize) -> Self {
        let node = Node { key: 0, visited: false, newer: NONE, older: NONE };
        Sieve {
            places: HashMap::new(),
            nodes: vec![node; capacity],
            free: (0..capacity).collect(),
            head: NONE,
            tail: NONE,
            hand: NONE,
        }
    }

    fn evict(&mut self) {
        let mut at = if self.hand == NONE { self.tail } else { self.hand };
        while self.nodes[at].visited {
            self.nodes[at].visited = false;
            at = self.nodes[at].newer;
            if at == NONE {
                at = self.tail;
            }
        }
        let Node { key, newer, older, .. } = self.nodes[at];
        self.hand = newer;
        match newer {
            NONE => self.head = older,
            newer => self.nodes[newer].older = older,
        }
        match older {
            NONE => self.tail = newer,
            older => self.nodes[older].newer = newer,
        }
        self.places.remove(&key);
        self.free.push(at);
    }
}

impl Policy for Sieve {
    fn request(&mut self, key: u64) -> bool {
        if let Some(&at) = self.places.get(&key) {
            self.nodes[at].visited = true;
            return true;
        }
        if self.free.is_empty() {
            self.evict();
        }
        let at = self.free.pop().expect("one was evicted");
        self.nodes[at] = Node { key, visited: false, newer: NONE, older: self.head };
        match self.head {
            NONE => self.tail = at,
            head => self.nodes[head].newer = at,
        }
        self.head = at;
        self.places.insert(key, at);
        false
    }
}

/// S3-FIFO (Yang et al., SOSP 2023), with a small queue of a tenth.
pub struct S3Fifo {
    capacity: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: VecDeque<u64>,
    /// How often each key is among the ghosts.
    remembered: HashMap<u64, u32>,
    visits: HashMap<u64, u8>,
}

impl S3Fifo {
    /// Makes an empty cache.
    pub fn new(capacity: usize) -> Self {
        S3Fifo {
            capacity,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            remembered: HashMap::new(),
            visits: HashMap::new(),
        }
    }

    fn small_max(&self) -> usize {
        self.capacity.div_ceil(10)
    }

    fn evict(&mut self) {
        if self.small.len() < self.small_max() && !self.main.is_empty() {
            return self.evict_main();
        }
        let main_max = self.capacity - self.small_max();
        while let Some(key) = self.small.pop_back() {
            if self.visits[&key] < 2 {
                self.visits.remove(&key);
                return self.remember(key, main_max);
            }
            self.visits.insert(key, 0);
            self.main.push_front(key);
            if self.main.len() > main_max {
                return self.evict_main();
            }
        }
        self.evict_main();
    }

    fn evict_main(&mut self) {
        while let Some(key) = self.main.pop_back() {
            match self.visits[&key] {
                0 => {
                    self.visits.remove(&key);
                    return;
                }
                visits => {
                    self.visits.insert(key, visits - 1);
                    self.main.push_front(key);
                }
            }
        }
    }

    fn remember(&mut self, key: u64, most: usize) {
        self.ghosts.push_front(key);
        *self.remembered.entry(key).or_default() += 1;
        while self.ghosts.len() > most {
            let oldest = self.ghosts.pop_back().expect("there are some");
            let times = self.remembered.get_mut(&oldest).expect("it is counted");
            *times -= 1;
            if *times == 0 {
                self.remembered.remove(&oldest);
            }
        }
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, key: u64) -> bool {
        if let Some(visits) = self.visits.get_mut(&key) {
            *visits = (*visits + 1).min(3);
            return true;
        }
        while self.visits.len() >= self.capacity {
            self.evict();
        }
        let queue =
            if self.remembered.contains_key(&key) { &mut self.main } else { &mut self.small };
        queue.push_front(key);
        self.visits.insert(key, 0);
        false
    }
}

/// Returns how many requests of a trace the best possible policy answers, which knows the future and need not
/// insert (Belady, 1966).
pub fn belady(trace: &[u64], capacity: usize) -> u64 {
    let mut next = vec![usize::MAX; trace.len()];
    let mut last = HashMap::new();
    for (at, key) in trace.iter().enumerate().rev() {
        next[at] = last.insert(key, at).unwrap_or(usize::MAX);
    }
    let (mut held, mut order, mut hits) = (HashMap::new(), BTreeSet::new(), 0);
    for (&key, &next) in trace.iter().zip(&next) {
        if let Some(due) = held.get(&key) {
            hits += 1;
            order.remove(&(*due, key));
        } else if held.len() >= capacity {
            let &(due, latest) = order.last().expect("the cache is full");
            if due <= next {
                continue;
            }
            order.remove(&(due, latest));
            held.remove(&latest);
        }
        held.insert(key, next);
        order.insert((next, key));
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(policy: &mut dyn Policy, trace: &[u64]) -> Vec<bool> {
        trace.iter().map(|&key| policy.request(key)).collect()
    }

    /// Each policy keeps a key that was used again, and only the optimal one gains much in a loop.
    #[test]
    fn each_policy_evicts_what_its_paper_says() {
        let trace = [1, 2, 3, 1, 4, 1, 2];
        let lru = hits(&mut Lru::new(3), &trace);
        assert_eq!(lru, [false, false, false, true, false, true, false]);
        // 4 evicts 2, since 1 was visited.
        let sieve = hits(&mut Sieve::new(3), &trace);
        assert_eq!(sieve, [false, false, false, true, false, true, false]);
        // In a loop, LRU and SIEVE hold nothing that comes next.
        let cycle: Vec<u64> = (0..60).map(|n| n % 6).collect();
        assert!(!hits(&mut Lru::new(5), &cycle).contains(&true));
        assert!(!hits(&mut Sieve::new(5), &cycle).contains(&true));
        let kept = hits(&mut S3Fifo::new(5), &cycle);
        assert!(kept.iter().filter(|hit| **hit).count() > 10, "{kept:?}");
        // All but the first round, and one of six in each later one.
        assert_eq!(belady(&cycle, 5), 45);
    }

    #[test]
    fn no_policy_holds_more_than_its_capacity() {
        let trace: Vec<u64> = (0..5_000u64).map(|n| n * n % 911).collect();
        let distinct = trace.iter().collect::<BTreeSet<_>>().len();
        let policies: [Box<dyn Policy>; 3] = [
            Box::new(Lru::new(distinct)),
            Box::new(Sieve::new(distinct)),
            Box::new(S3Fifo::new(distinct)),
        ];
        for mut policy in policies {
            let misses = hits(&mut *policy, &trace).iter().filter(|hit| !**hit).count();
            assert_eq!(misses, distinct, "a cache for all keys misses each once");
        }
        assert_eq!(belady(&trace, distinct), (trace.len() - distinct) as u64);
    }
}
