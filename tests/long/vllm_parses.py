"""Child of test_vllm_accepts.py: what a real vLLM makes of start-up flags. Runs in vLLM's own venv.

Reads a list of command lines (JSON: a list of lists of words) from standard input and writes a
list of outcomes to the file named by its only argument. An outcome is either `{"error": text}` or
the parsed speculative configuration with K per batch size as the scheduler would look it up.
"""

import json
import sys

from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup


def parse(words: list[str]) -> dict[str, object]:
    """Parse a `vllm serve` command line as the server does, up to the scheduler's table."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    config = EngineArgs.from_cli_args(parser.parse_args(words)).create_engine_config()
    speculative = config.speculative_config
    if speculative is None:
        return {"method": None}
    lookup = build_dynamic_sd_schedule_lookup(
        speculative.num_speculative_tokens_per_batch_size,
        vllm_max_batch_size=config.scheduler_config.max_num_seqs,
        vllm_num_speculative_tokens=config.num_speculative_tokens,
    )
    return {
        "method": speculative.method,
        "model": speculative.model,
        "num_speculative_tokens": config.num_speculative_tokens,
        "table": speculative.num_speculative_tokens_per_batch_size,
        "lookup": lookup[1:],
        "draft_sample_method": speculative.draft_sample_method,
        "prompt_lookup_min": speculative.prompt_lookup_min,
        "prompt_lookup_max": speculative.prompt_lookup_max,
        "draft_layers": speculative.draft_model_config.hf_config.num_hidden_layers,
    }


def main() -> None:
    """Parse every command line; one that vLLM refuses is an outcome, not a failure."""
    outcomes: list[dict[str, object]] = []
    for words in json.load(sys.stdin):
        try:
            outcomes.append(parse(words))
        except ValueError as error:  # pydantic's refusals are among them
            outcomes.append({"error": str(error)})
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(outcomes, out)


if __name__ == "__main__":
    main()
