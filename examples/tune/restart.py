# SPDX-License-Identifier: Apache-2.0
"""Resuming by hand from a bucket: a program for Ray Tune with pawl in the place of ray."""

from pawl import tune
from your_module import my_trainable

sync_config = tune.SyncConfig(
    upload_dir="s3://my-checkpoints-bucket/path/",  # requires AWS credentials
)

# Restored previous trial from the given checkpoint
tune.run(
    # our same trainable as before
    my_trainable,

    # The name can be different from your original name
    name="my-tune-exp-restart",

    # our same config as above!
    restore=sync_config,
)
