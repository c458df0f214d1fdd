"""The implementation in PaddlePaddle."""
