//! The report of a wait that took too long.

use std::time::{Duration, Instant};

use super::frame::{Header, Lane};
use super::net::Net;
use crate::failure::lock;
use crate::late::{self, Standing};
use crate::member::Trouble;

/// How long answers of the other ranks are awaited.
const ANSWERS: Duration = Duration::from_secs(1);

impl Net {
    /// Ends the waits with a report: `from` has not sent its part.
    pub(super) fn late(&self, group: &str, ranks: &[usize], from: usize, waited: Duration) {
        let all = self.ask();
        self.abort(&late::report_of_missing(group, ranks, self.rank, &all, from, waited));
    }

    /// Ends the waits with a report on a call of a vendor's library.
    pub(super) fn trouble(&self, group: &str, ranks: &[usize], trouble: Trouble<'_>) {
        let all = self.ask();
        self.abort(&late::report(group, ranks, self.rank, &all, trouble));
    }

    /// Asks all ranks what they do.
    fn ask(&self) -> Vec<Standing> {
        lock(&self.histories).clear();
        for peer in self.others() {
            self.last_words(peer, &Header::of(Lane::AskHistory, 0), &[]);
        }
        let began = Instant::now();
        let mut answers = lock(&self.histories);
        while answers.len() + 1 < self.size() && began.elapsed() < ANSWERS {
            answers =
                self.answered.wait_timeout(answers, Duration::from_millis(20)).unwrap_or_else(|e| e.into_inner()).0;
        }
        let standing = |rank: usize| {
            let own = || (self.log.waits_in(), self.log.report());
            let told = if rank == self.rank { Some(own()) } else { answers.get(&rank).cloned() };
            Standing { rank, who: self.who(rank), told }
        };
        (0..self.size()).map(standing).collect()
    }
}
