"""Pure renderers: a published document as the start-up settings of one serving engine."""
