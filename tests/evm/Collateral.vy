# pragma version 0.4.3
# A contract with the interface of ComputeHorde's collateral contract (`abi.json` in bactensor/collateral-contracts), for
# tests only: the functions, errors and events by which validators and miners use it. Written anew in Vyper.

struct Reclaim:
    miner: address
    amount: uint256
    denyTimeout: uint256

event Deposit:
    account: indexed(address)
    amount: uint256

event Slashed:
    account: indexed(address)
    amount: uint256
    url: String[512]
    urlContentMd5Checksum: bytes16

NETUID: public(immutable(uint16))
TRUSTEE: public(immutable(address))
DECISION_TIMEOUT: public(immutable(uint64))
MIN_COLLATERAL_INCREASE: public(immutable(uint256))

collaterals: public(HashMap[address, uint256])
reclaims: public(HashMap[uint256, Reclaim])
next_reclaim: uint256
pending: HashMap[address, uint256]


@deploy
def __init__(netuid: uint16, trustee: address, min_increase: uint256, timeout: uint64):
    NETUID = netuid
    TRUSTEE = trustee
    MIN_COLLATERAL_INCREASE = min_increase
    DECISION_TIMEOUT = timeout


@external
@payable
def deposit():
    if msg.value < MIN_COLLATERAL_INCREASE:
        raw_revert(method_id("InsufficientAmount()"))
    self.collaterals[msg.sender] += msg.value
    log Deposit(account=msg.sender, amount=msg.value)


@external
def reclaimCollateral(amount: uint256, url: String[512], urlContentMd5Checksum: bytes16):
    if amount == 0:
        raw_revert(method_id("AmountZero()"))
    if self.pending[msg.sender] + amount > self.collaterals[msg.sender]:
        raw_revert(method_id("ReclaimAmountTooLarge()"))
    self.next_reclaim += 1
    self.reclaims[self.next_reclaim] = Reclaim(
        miner=msg.sender, amount=amount, denyTimeout=block.timestamp + convert(DECISION_TIMEOUT, uint256)
    )
    self.pending[msg.sender] += amount


@external
def finalizeReclaim(reclaimRequestId: uint256):
    reclaim: Reclaim = self.reclaims[reclaimRequestId]
    if reclaim.amount == 0:
        raw_revert(method_id("ReclaimNotFound()"))
    if reclaim.denyTimeout >= block.timestamp:
        raw_revert(method_id("BeforeDenyTimeout()"))
    self.reclaims[reclaimRequestId] = empty(Reclaim)
    self.pending[reclaim.miner] -= reclaim.amount
    if self.collaterals[reclaim.miner] < reclaim.amount:
        return
    self.collaterals[reclaim.miner] -= reclaim.amount
    send(reclaim.miner, reclaim.amount)


@external
def denyReclaimRequest(reclaimRequestId: uint256, url: String[512], urlContentMd5Checksum: bytes16):
    if msg.sender != TRUSTEE:
        raw_revert(method_id("NotTrustee()"))
    reclaim: Reclaim = self.reclaims[reclaimRequestId]
    if reclaim.amount == 0:
        raw_revert(method_id("ReclaimNotFound()"))
    self.pending[reclaim.miner] -= reclaim.amount
    self.reclaims[reclaimRequestId] = empty(Reclaim)


@external
def slashCollateral(miner: address, amount: uint256, url: String[512], urlContentMd5Checksum: bytes16):
    if msg.sender != TRUSTEE:
        raw_revert(method_id("NotTrustee()"))
    if amount == 0:
        raw_revert(method_id("AmountZero()"))
    if self.collaterals[miner] < amount:
        raw_revert(method_id("InsufficientAmount()"))
    self.collaterals[miner] -= amount
    send(empty(address), amount)
    log Slashed(account=miner, amount=amount, url=url, urlContentMd5Checksum=urlContentMd5Checksum)
