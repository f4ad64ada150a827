"""KVFerry's connector for SGLang: HiCache's third level by `--hicache-storage-backend kvferry` alone.

Translation only: what is not specific to SGLang lives in `kvferry`. Importing this loads neither SGLang nor
torch.
"""
