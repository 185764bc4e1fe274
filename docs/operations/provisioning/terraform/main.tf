# An executor on a machine that is reached by SSH, as a module for terraform.sh. Replace the resource by the machine of
# your provider: its user_data gets the same variables, ends itself after lifetime_s, and runs `muster executor`.

variable "name" { type = string }
variable "class" { type = string }
variable "miner_address" { type = string }
variable "executor_token" {
  type      = string
  sensitive = true
}
variable "lifetime_s" { type = number }
variable "host" { type = string }
variable "script" { type = string }

resource "terraform_data" "executor" {
  # A destroyed resource sees its own values only.
  input = { name = var.name, host = var.host, script = var.script }

  provisioner "local-exec" {
    command = "${self.input.script} provision ${self.input.host}"
    environment = {
      EXECUTOR_NAME       = self.input.name
      MINER_ADDRESS       = var.miner_address
      EXECUTOR_TOKEN      = var.executor_token
      EXECUTOR_LIFETIME_S = var.lifetime_s
    }
  }

  provisioner "local-exec" {
    when        = destroy
    command     = "${self.input.script} release ${self.input.host}"
    environment = { EXECUTOR_NAME = self.input.name }
  }
}
