"""Everything the engine raises on purpose.

::

    EngineError
    ├── CheckpointError              a model folder, file or name that cannot be used
    │   ├── UnsupportedModelError    readable, but the engine does not compute this architecture
    │   ├── WeightsError             tensors missing, damaged, unexpected or in an unsafe format
    │   ├── TokenizerError           tokenizer or chat template missing or unusable
    │   ├── VocabularyMismatchError  two tokenizers give one id to different tokens
    │   └── DownloadError            a model could not be fetched, or was not the pinned one
    ├── RequestError                 a request the model cannot serve
    ├── TrainingError                a drafter that cannot be trained as asked
    └── NumericError                 logits that are not finite

Every message is one line that names the thing, its value and, where there is one, the
remedy, so that a caller can show it to a person as it is.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class CheckpointError(EngineError):
    """A model folder, file or name cannot be used."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is readable, but running it here would give wrong results."""


class WeightsError(CheckpointError):
    """Tensors are missing, damaged, unexpected, or stored in an unsafe format."""


class TokenizerError(CheckpointError):
    """The tokenizer or its chat template is missing or unusable."""


class VocabularyMismatchError(CheckpointError):
    """Target and drafter give the same id to different tokens."""


class DownloadError(CheckpointError):
    """A model could not be fetched, or what came is not what was pinned."""


class RequestError(EngineError):
    """A request that this model cannot serve."""


class NumericError(EngineError):
    """The model produced logits that are not finite."""


class TrainingError(EngineError):
    """A drafter cannot be trained: the data, the settings or the files do not allow it."""
