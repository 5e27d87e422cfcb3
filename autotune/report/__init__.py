"""What the inspecting commands say, as values: computed here, printed by `autotune.cli`."""
