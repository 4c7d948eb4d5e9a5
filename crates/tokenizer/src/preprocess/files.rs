//! The writer of `.bin` and `.idx` files that an interrupted run can go on with.

use super::output::{DocumentSink, OutputPlan, SinkError, SinkMark};
use crate::TokenDType;
use ferrotron_data::TokenType;
use ferrotron_data::indexed::{Mark, ResumableWriter};

struct Files(ResumableWriter);

/// Opens the files of one dataset, anew or where an earlier run left off.
pub(super) fn open(plan: &OutputPlan) -> Result<Box<dyn DocumentSink>, SinkError> {
    let token_type = match plan.dtype {
        TokenDType::U16 => TokenType::U16,
        TokenDType::I32 => TokenType::I32,
    };
    let from = plan.resume.map_or(Mark::default(), |m| Mark {
        bytes: m.bytes,
        sequences: m.sequences,
        documents: m.documents,
    });
    Ok(Box::new(Files(ResumableWriter::open(&plan.partial, token_type, from)?)))
}

impl DocumentSink for Files {
    fn add_document(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<(), SinkError> {
        Ok(self.0.add_document(tokens, lengths)?)
    }

    fn mark(&mut self) -> Result<Option<SinkMark>, SinkError> {
        let Mark { bytes, sequences, documents } = self.0.mark()?;
        Ok(Some(SinkMark { bytes, sequences, documents }))
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Ok(self.0.finish()?)
    }
}
