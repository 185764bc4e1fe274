-- The client's key in hex, by which each request had a pseudonym and which the leaf in the log follows from; null of answers that earlier releases kept. `pseudonym_nonce` is the nonce of the pseudonym in hex, if the gateway drew it: null if the client named one.
ALTER TABLE responses ADD COLUMN client_key TEXT;
ALTER TABLE responses ADD COLUMN pseudonym_nonce TEXT;

-- The text of a miner's answer to an own prompt, with which a later prompt goes on; null again once one has.
ALTER TABLE canaries ADD COLUMN reply TEXT;
