//! The calls, with the names, indices and arguments of the public chain. Their effects are in the files of their
//! subjects.

use frame_support::pallet_macros::pallet_section;

/// The section of the pallet that its module imports; names are that module's.
#[pallet_section]
mod calls {
    /// The weight of every call: a local chain's blocks are never full.
    const CALL: Weight = Weight::from_parts(10_000_000, 0);

    #[pallet::call]
    #[allow(clippy::too_many_arguments, reason = "the public chain's calls have these")]
    impl<T: Config> Pallet<T> {
        /// Sets the weights of the signing validator.
        #[pallet::call_index(0)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn set_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            dests: Vec<u16>,
            weights: Vec<u16>,
            version_key: u64,
        ) -> DispatchResult {
            Self::do_set_weights(
                &ensure_signed(origin)?,
                netuid,
                MechId(0),
                &dests,
                &weights,
                version_key,
            )
        }

        /// Stakes TAO of the signing coldkey with a hotkey.
        #[pallet::call_index(2)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::Yes))]
        pub fn add_stake(
            origin: OriginFor<T>,
            hotkey: AccountId,
            netuid: NetUid,
            amount_staked: TaoBalance,
        ) -> DispatchResult {
            Self::do_add_stake(&ensure_signed(origin)?, &hotkey, netuid, amount_staked)
        }

        /// Takes stake of the signing coldkey back from a hotkey.
        #[pallet::call_index(3)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::Yes))]
        pub fn remove_stake(
            origin: OriginFor<T>,
            hotkey: AccountId,
            netuid: NetUid,
            amount_unstaked: AlphaBalance,
        ) -> DispatchResult {
            Self::do_remove_stake(&ensure_signed(origin)?, &hotkey, netuid, amount_unstaked)
        }

        /// Announces the signing hotkey's axon.
        #[pallet::call_index(4)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn serve_axon(
            origin: OriginFor<T>,
            netuid: NetUid,
            version: u32,
            ip: u128,
            port: u16,
            ip_type: u8,
            protocol: u8,
            placeholder1: u8,
            placeholder2: u8,
        ) -> DispatchResult {
            let axon = AxonInfo {
                block: 0,
                version,
                ip,
                port,
                ip_type,
                protocol,
                placeholder1,
                placeholder2,
            };
            Self::do_serve_axon(ensure_signed(origin)?, netuid, axon, None)
        }

        /// Announces where the signing hotkey's metrics are served.
        #[pallet::call_index(5)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn serve_prometheus(
            origin: OriginFor<T>,
            netuid: NetUid,
            version: u32,
            ip: u128,
            port: u16,
            ip_type: u8,
        ) -> DispatchResult {
            let info = PrometheusInfo {
                block: 0,
                version,
                ip,
                port,
                ip_type,
            };
            Self::do_serve_prometheus(ensure_signed(origin)?, netuid, info)
        }

        /// Registers a hotkey for work: the signer is the hotkey.
        #[pallet::call_index(6)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn register(
            origin: OriginFor<T>,
            netuid: NetUid,
            block_number: u64,
            nonce: u64,
            work: Vec<u8>,
            hotkey: AccountId,
            coldkey: AccountId,
        ) -> DispatchResult {
            let who = ensure_signed(origin)?;
            Self::do_register(&who, netuid, block_number, nonce, &work, &hotkey, &coldkey)
        }

        /// Registers a hotkey; the signing coldkey pays.
        #[pallet::call_index(7)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::Yes))]
        pub fn burned_register(origin: OriginFor<T>, netuid: NetUid, hotkey: AccountId) -> DispatchResult {
            Self::do_burned_register(&ensure_signed(origin)?, netuid, &hotkey)
        }

        /// Announces the signing hotkey's axon and its TLS key.
        #[pallet::call_index(40)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn serve_axon_tls(
            origin: OriginFor<T>,
            netuid: NetUid,
            version: u32,
            ip: u128,
            port: u16,
            ip_type: u8,
            protocol: u8,
            placeholder1: u8,
            placeholder2: u8,
            certificate: Vec<u8>,
        ) -> DispatchResult {
            let axon = AxonInfo {
                block: 0,
                version,
                ip,
                port,
                ip_type,
                protocol,
                placeholder1,
                placeholder2,
            };
            Self::do_serve_axon(ensure_signed(origin)?, netuid, axon, Some(&certificate))
        }

        /// Sets the weights of the signing validator on several subnets. Each succeeds or fails by itself.
        #[pallet::call_index(80)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn batch_set_weights(
            origin: OriginFor<T>,
            netuids: Vec<Compact<NetUid>>,
            weights: Vec<Vec<(Compact<u16>, Compact<u16>)>>,
            version_keys: Vec<Compact<u64>>,
        ) -> DispatchResult {
            Self::do_batch_set(ensure_signed(origin)?, netuids, &weights, &version_keys)
        }

        /// Associates the signing hotkey with an EVM key, which signed for it.
        #[pallet::call_index(93)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn associate_evm_key(
            origin: OriginFor<T>,
            netuid: NetUid,
            evm_key: H160,
            block_number: u64,
            signature: ecdsa::Signature,
        ) -> DispatchResult {
            Self::do_associate_evm_key(ensure_signed(origin)?, netuid, evm_key, block_number, signature)
        }

        /// Commits to weights by their hash.
        #[pallet::call_index(96)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn commit_weights(origin: OriginFor<T>, netuid: NetUid, commit_hash: H256) -> DispatchResult {
            Self::do_commit(&ensure_signed(origin)?, netuid, MechId(0), commit_hash)
        }

        /// Reveals weights to which the signer committed.
        #[pallet::call_index(97)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn reveal_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            uids: Vec<u16>,
            values: Vec<u16>,
            salt: Vec<u16>,
            version_key: u64,
        ) -> DispatchResult {
            Self::do_reveal(
                &ensure_signed(origin)?,
                netuid,
                MechId(0),
                &uids,
                &values,
                &salt,
                version_key,
            )
        }

        /// Reveals several of the weights to which the signer committed on a subnet: all or none.
        #[pallet::call_index(98)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn batch_reveal_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            uids_list: Vec<Vec<u16>>,
            values_list: Vec<Vec<u16>>,
            salts_list: Vec<Vec<u16>>,
            version_keys: Vec<u64>,
        ) -> DispatchResult {
            let who = ensure_signed(origin)?;
            Self::do_batch_reveal(who, netuid, &uids_list, &values_list, &salts_list, &version_keys)
        }

        /// Commits to weights on several subnets. Each succeeds or fails by itself.
        #[pallet::call_index(100)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn batch_commit_weights(
            origin: OriginFor<T>,
            netuids: Vec<Compact<NetUid>>,
            commit_hashes: Vec<H256>,
        ) -> DispatchResult {
            Self::do_batch_commit(ensure_signed(origin)?, netuids, &commit_hashes)
        }

        /// Commits to weights that a beacon's round opens.
        #[pallet::call_index(113)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn commit_timelocked_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            commit: BoundedVec<u8, ConstU32<MAX_TIMELOCKED_COMMIT>>,
            reveal_round: u64,
            commit_reveal_version: u16,
        ) -> DispatchResult {
            let who = ensure_signed(origin)?;
            Self::do_commit_timelocked(
                who,
                netuid,
                MechId(0),
                commit,
                reveal_round,
                commit_reveal_version,
            )
        }

        /// Commits to weights of one mechanism by their hash.
        #[pallet::call_index(115)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn commit_mechanism_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            mecid: MechId,
            commit_hash: H256,
        ) -> DispatchResult {
            Self::do_commit(&ensure_signed(origin)?, netuid, mecid, commit_hash)
        }

        /// Reveals weights of one mechanism to which the signer committed.
        #[pallet::call_index(116)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn reveal_mechanism_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            mecid: MechId,
            uids: Vec<u16>,
            values: Vec<u16>,
            salt: Vec<u16>,
            version_key: u64,
        ) -> DispatchResult {
            Self::do_reveal(
                &ensure_signed(origin)?,
                netuid,
                mecid,
                &uids,
                &values,
                &salt,
                version_key,
            )
        }

        /// Commits to weights of one mechanism that a beacon's round opens.
        #[pallet::call_index(118)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn commit_timelocked_mechanism_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            mecid: MechId,
            commit: BoundedVec<u8, ConstU32<MAX_TIMELOCKED_COMMIT>>,
            reveal_round: u64,
            commit_reveal_version: u16,
        ) -> DispatchResult {
            let who = ensure_signed(origin)?;
            Self::do_commit_timelocked(who, netuid, mecid, commit, reveal_round, commit_reveal_version)
        }

        /// Sets the weights of the signing validator for one mechanism.
        #[pallet::call_index(119)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn set_mechanism_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            mecid: MechId,
            dests: Vec<u16>,
            weights: Vec<u16>,
            version_key: u64,
        ) -> DispatchResult {
            Self::do_set_weights(
                &ensure_signed(origin)?,
                netuid,
                mecid,
                &dests,
                &weights,
                version_key,
            )
        }

        /// Registers a hotkey if the price is not above a limit; the signing coldkey pays.
        #[pallet::call_index(134)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::Yes))]
        pub fn register_limit(
            origin: OriginFor<T>,
            netuid: NetUid,
            hotkey: AccountId,
            limit_price: u64,
        ) -> DispatchResult {
            Self::do_register_limit(&ensure_signed(origin)?, netuid, &hotkey, limit_price)
        }
    }
}
