//! Tests of the engine over a fake decoder.
