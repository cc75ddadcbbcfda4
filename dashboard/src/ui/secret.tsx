/** A secret that the server tells once. */
import { Dialog } from "./dialogs";
import { Button, Copy } from "./parts";

export function Secret({ label, text, close }: { label: string; text: string; close: () => void }) {
  return (
    <Dialog label={label} close={close}>
      <div class="inside">
        <h2>Keep this secret</h2>
        <p>It is shown only now.</p>
        <code>{text}</code>
        <div class="buttons">
          <Copy text={text} label="Copy the secret" />
          <Button kind="main" onClick={close}>
            I have it
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
