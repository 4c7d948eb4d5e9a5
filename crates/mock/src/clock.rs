//! Vector clocks (Fidge 1988, Mattern 1989): what has surely happened before what.

/// A count of events for each actor: actor 0 is the host, the others are streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(Vec<u64>);

/// One event of one actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Who.
    pub actor: usize,
    /// Its how-manieth event, from 1.
    pub tick: u64,
}

impl Clock {
    /// A new event of `actor`.
    pub fn tick(&mut self, actor: usize) -> Epoch {
        if self.0.len() <= actor {
            self.0.resize(actor + 1, 0);
        }
        self.0[actor] += 1;
        Epoch { actor, tick: self.0[actor] }
    }

    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// True when the event surely happened before whoever has this clock goes on.
    pub fn knows(&self, e: Epoch) -> bool {
        self.0.get(e.actor).is_some_and(|&t| t >= e.tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_brings_knowledge_and_a_tick_does_not() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        let first = a.tick(1);
        assert!(a.knows(first) && !b.knows(first));
        b.tick(2);
        b.join(&a);
        let second = a.tick(1);
        assert!(b.knows(first) && !b.knows(second));
    }
}
