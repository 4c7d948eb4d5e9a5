//! A `.model` file: the few fields of SentencePiece's `ModelProto` that decide ids, read from protobuf's wire format.
//!
//! Source: `sentencepiece_model.proto`. Unknown fields are passed over, so files of newer trainers load.

/// What a piece stands for (`ModelProto.SentencePiece.Type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// One entry of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub text: String,
    pub score: f32,
    pub kind: PieceType,
}

/// How text becomes pieces (`TrainerSpec.ModelType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Unigram,
    Bpe,
    Word,
    Char,
}

/// `NormalizerSpec`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NormalizerSpec {
    pub charsmap: Vec<u8>,
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

/// The parts of `ModelProto` that decide ids.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelFile {
    pub pieces: Vec<Piece>,
    pub algorithm: Algorithm,
    pub whitespace_as_suffix: bool,
    pub byte_fallback: bool,
    pub unk_surface: String,
    pub bos_piece: String,
    pub eos_piece: String,
    pub pad_piece: String,
    pub normalizer: NormalizerSpec,
    /// Rules that a decoder applies to the text; `None` when the file has none.
    pub denormalizer: Option<NormalizerSpec>,
}

/// One field's value.
enum Value<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
    /// A 64-bit value, which no field here has.
    Other,
}

/// The fields of one message.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or("it ends inside a number")?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number has more than 64 bits".into())
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], String> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| format!("a field of {len} bytes begins where only {} are left", self.rest.len()))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Number and value of the next field; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Other
            }
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            5 => {
                let mut four = [0; 4];
                four.copy_from_slice(self.take(4)?);
                Value::Fixed32(four)
            }
            kind => return Err(format!("field {} has the wire type {kind}", tag >> 3)),
        };
        Ok(Some((tag >> 3, value)))
    }
}

fn text(bytes: &[u8], what: &str) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| format!("{what} is not UTF-8"))
}

fn piece(bytes: &[u8], id: usize) -> Result<Piece, String> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: PieceType::Normal };
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(b)) => piece.text = text(b, &format!("piece {id}"))?,
            (2, Value::Fixed32(b)) => piece.score = f32::from_le_bytes(b) + 0.0, // no -0
            (3, Value::Varint(v)) => {
                piece.kind = match v {
                    1 => PieceType::Normal,
                    2 => PieceType::Unknown,
                    3 => PieceType::Control,
                    4 => PieceType::UserDefined,
                    5 => PieceType::Unused,
                    6 => PieceType::Byte,
                    _ => return Err(format!("piece {id} has the unknown type {v}")),
                }
            }
            _ => {}
        }
    }
    if piece.text.is_empty() {
        return Err(format!("piece {id} is empty"));
    }
    if !piece.score.is_finite() {
        return Err(format!("piece {id} ({:?}) has the score {}", piece.text, piece.score));
    }
    Ok(piece)
}

fn normalizer(bytes: &[u8]) -> Result<NormalizerSpec, String> {
    let mut spec = NormalizerSpec {
        charsmap: Vec::new(),
        add_dummy_prefix: true,
        remove_extra_whitespaces: true,
        escape_whitespaces: true,
    };
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (2, Value::Bytes(b)) => spec.charsmap = b.to_vec(),
            (3, Value::Varint(v)) => spec.add_dummy_prefix = v != 0,
            (4, Value::Varint(v)) => spec.remove_extra_whitespaces = v != 0,
            (5, Value::Varint(v)) => spec.escape_whitespaces = v != 0,
            _ => {}
        }
    }
    Ok(spec)
}

impl ModelFile {
    fn trainer(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut fields = Fields { rest: bytes };
        while let Some(field) = fields.next()? {
            match field {
                (3, Value::Varint(v)) => {
                    self.algorithm = match v {
                        1 => Algorithm::Unigram,
                        2 => Algorithm::Bpe,
                        3 => Algorithm::Word,
                        4 => Algorithm::Char,
                        _ => return Err(format!("the model type {v} is unknown")),
                    }
                }
                (24, Value::Varint(v)) => self.whitespace_as_suffix = v != 0,
                (35, Value::Varint(v)) => self.byte_fallback = v != 0,
                (44, Value::Bytes(b)) => self.unk_surface = text(b, "unk_surface")?,
                (46, Value::Bytes(b)) => self.bos_piece = text(b, "bos_piece")?,
                (47, Value::Bytes(b)) => self.eos_piece = text(b, "eos_piece")?,
                (48, Value::Bytes(b)) => self.pad_piece = text(b, "pad_piece")?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the whole file.
    ///
    /// # Errors
    /// What is wrong with the bytes, as a clause.
    pub fn parse(bytes: &[u8]) -> Result<ModelFile, String> {
        let mut model = ModelFile {
            pieces: Vec::new(),
            algorithm: Algorithm::Unigram,
            whitespace_as_suffix: false,
            byte_fallback: false,
            unk_surface: " \u{2047} ".into(),
            bos_piece: "<s>".into(),
            eos_piece: "</s>".into(),
            pad_piece: "<pad>".into(),
            normalizer: normalizer(&[])?,
            denormalizer: None,
        };
        let mut fields = Fields { rest: bytes };
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(b)) => model.pieces.push(piece(b, model.pieces.len())?),
                (2, Value::Bytes(b)) => model.trainer(b)?,
                (3, Value::Bytes(b)) => model.normalizer = normalizer(b)?,
                (5, Value::Bytes(b)) => {
                    model.denormalizer = Some(normalizer(b)?).filter(|spec| !spec.charsmap.is_empty());
                }
                _ => {}
            }
        }
        if model.pieces.is_empty() {
            return Err("it has no pieces".into());
        }
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_wire_formats_are_told_apart() {
        let check = |bytes: &[u8], part: &str| {
            let e = ModelFile::parse(bytes).unwrap_err();
            assert!(e.contains(part), "{e}");
        };
        check(b"", "no pieces");
        check(&[0x0a], "ends inside a number");
        check(&[0x0a, 200, 1, 0], "a field of 200 bytes begins where only 1 are left");
        check(&[0x0b], "wire type 3");
        check(&[0xff; 12], "more than 64 bits");
        check(&[0x0a, 0], "piece 0 is empty");
        check(&[0x0a, 3, 0x0a, 1, 0xff], "piece 0 is not UTF-8");
        check(&[0x0a, 5, 0x0a, 1, b'a', 0x18, 9], "piece 0 has the unknown type 9");
        check(&[0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0xc0, 0x7f], "score NaN");
        let ok = ModelFile::parse(&[0x0a, 3, 0x0a, 1, b'a']).unwrap();
        assert_eq!(ok.pieces, [Piece { text: "a".into(), score: 0.0, kind: PieceType::Normal }]);
    }
}
