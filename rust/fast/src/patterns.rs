//! Regular expressions in `loadmaster.fast`, matched in linear time.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use regex::{Error, Regex, RegexBuilder};
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, ClassSetBinaryOp, ClassSetItem, Visitor, visit};

/// A regular expression of whole texts. A dot matches line ends too.
///
/// The syntax is that of Python's ``re``, without what takes more than linear time (references back,
/// look-ahead and look-behind, atomic groups, possessive quantifiers). O(pattern x text) per match.
///
/// Parameters
/// ----------
/// pattern : str
///
/// Raises
/// ------
/// ValueError
///     No regular expression, or one with more than is supported; the message says what.
///
/// Examples
/// --------
/// >>> from loadmaster import fast
/// >>> fast.Pattern("layers?").matches("layer"), fast.Pattern("layer").matches("layers")
/// (True, False)
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Pattern(Regex);

#[pymethods]
impl Pattern {
    #[new]
    fn new(pattern: &str) -> PyResult<Self> {
        let wrong = |reason: &str| PyValueError::new_err(reason.to_owned());
        let ast = Parser::new().parse(pattern).map_err(|error| wrong(&error.kind().to_string()))?;
        visit(&ast, AsInPython).map_err(wrong)?;
        match RegexBuilder::new(&format!(r"\A(?:{pattern})\z")).dot_matches_new_line(true).build() {
            Ok(regex) => Ok(Self(regex)),
            Err(Error::CompiledTooBig(_)) => Err(wrong("too large")),
            // Of several lines, the last says what is wrong.
            Err(error) => Err(wrong(error.to_string().lines().last().unwrap_or_default())),
        }
    }

    /// Whether a whole text matches.
    fn matches(&self, text: &Bound<'_, PyString>) -> bool {
        self.0.is_match(&text.to_string_lossy())
    }
}

/// Refuses what means another thing in Python, or nothing.
struct AsInPython;

impl Visitor for AsInPython {
    type Output = ();
    type Err = &'static str;

    fn finish(self) -> Result<(), Self::Err> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Self::Err> {
        match ast {
            Ast::Repetition(outer) if matches!(*outer.ast, Ast::Repetition(_)) => {
                Err("a quantifier after a quantifier is not supported: put what is repeated in (?:...)")
            }
            _ => Ok(()),
        }
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Self::Err> {
        match item {
            ClassSetItem::Bracketed(_) | ClassSetItem::Ascii(_) => {
                Err(r"a set of characters in another is not supported: put \ before a bracket that is meant")
            }
            _ => Ok(()),
        }
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &ClassSetBinaryOp) -> Result<(), Self::Err> {
        Err(r"&&, -- and ~~ in a set of characters are not supported: put \ before them if they are meant")
    }
}
