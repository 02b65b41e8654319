//! Chains of moves that exchange what they find.
//!
//! A round is a fixed number of moves. After every round each chain learns the best state of all chains; of
//! equal ones, that of the first chain. So the result depends on the seed, the number of chains and the
//! number of moves, and on nothing else. Threads only share the chains among them, and a caller who pauses in
//! the middle of a round changes nothing.

use crate::border::check_room;
use crate::error::Error;
use crate::search::anneal::{Chain, Found, Stop};
use crate::search::n_threads;
use crate::search::problem::Problem;
use crate::search::state::State;

/// Moves of each chain in a round.
pub const ROUND: u64 = 1 << 14;

/// All chains of a search.
#[derive(Debug)]
pub struct Chains<'a> {
    chains: Vec<Chain<'a>>,
    threads: usize,
    /// Moves that each chain has been asked for.
    moves: u64,
}

impl<'a> Chains<'a> {
    /// `count` chains from a state that [`Problem::check`] has passed, on at most `threads` threads.
    ///
    /// # Errors
    /// More chains than there is room for.
    pub fn new(
        problem: &'a Problem<'a>,
        start: &Found,
        seed: u64,
        count: usize,
        threads: usize,
        stop: Stop,
    ) -> Result<Self, Error> {
        check_room("chains", count, size_of::<Chain<'_>>() + State::bytes(problem))?;
        let chains = (0..count.max(1)).map(|number| Chain::new(problem, start, seed, number, stop)).collect();
        Ok(Self { chains, threads: n_threads(threads, count), moves: 0 })
    }

    /// The best state so far.
    pub fn best(&self) -> &Found {
        let mut best = self.chains[0].best();
        for chain in &self.chains[1..] {
            if chain.best().makespan < best.makespan {
                best = chain.best();
            }
        }
        best
    }

    /// Moves that all chains have made.
    pub fn moves(&self) -> u64 {
        self.chains.iter().map(Chain::moves).sum()
    }

    /// Visits of ops by the chain that has made most.
    pub fn visits(&self) -> u64 {
        self.chains.iter().map(Chain::visits).max().unwrap_or(0)
    }

    /// Whether all have stopped.
    pub fn is_done(&self) -> bool {
        self.chains.iter().all(Chain::is_done)
    }

    /// Makes a number of moves in each chain. Many calls are the same as one.
    pub fn run(&mut self, moves: u64) {
        let mut left = moves;
        while left > 0 {
            let slice = left.min(ROUND - self.moves % ROUND);
            self.run_slice(slice);
            self.moves += slice;
            left -= slice;
            if self.moves.is_multiple_of(ROUND) {
                self.exchange();
            }
        }
    }

    fn run_slice(&mut self, moves: u64) {
        let Some((first, rest)) = self.chains.split_first_mut() else { return };
        if self.threads == 1 {
            first.run(moves);
            rest.iter_mut().for_each(|chain| chain.run(moves));
            return;
        }
        let share = self.chains.len().div_ceil(self.threads);
        std::thread::scope(|scope| {
            for chains in self.chains.chunks_mut(share) {
                scope.spawn(move || chains.iter_mut().for_each(|chain| chain.run(moves)));
            }
        });
    }

    fn exchange(&mut self) {
        if self.chains.len() > 1 {
            let best = self.best().clone();
            self.chains.iter_mut().for_each(|chain| chain.learn(&best));
        }
    }
}
